"""Encoders of BERT's kind that predict faster on a processor, to the same logits but for rounding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from calmix.models.anatomy import anatomy

__all__ = ["hastened"]

# Those that call the parts of a layer by these names, and read the first token of the last layer.
_KINDS = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
_PARTS = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
          "intermediate.dense", "output.dense")  # fmt: skip
# Kinds of models that were tried in this process, and whether they said the same.
_TRIED: dict[type[nn.Module], bool] = {}

Product = Callable[[Tensor], Tensor]


@contextmanager
def hastened(model: nn.Module, sample: Callable[[], dict[str, Tensor]], *, whole: bool = False) -> Iterator[None]:
    """Inside the block, have a model in evaluation mode predict faster in float32 on a processor, if its kind is known.

    Weights lie as oneDNN wants them, GELU is part of the product before it, and of the last layer only that is computed
    which the head reads, unless the `whole` of it is wanted. `sample` makes the inputs that the first model of a kind
    is tried on: should it not say the same, it is left as it is.
    """
    layers = _layers_of(model)
    if layers and type(model) not in _TRIED:
        _TRIED[type(model)] = _agrees(model, layers, sample())
    with _changed(layers if layers and _TRIED[type(model)] else [], whole=whole):
        yield


def _agrees(model: nn.Module, layers: Sequence[nn.Module], inputs: dict[str, Tensor]) -> bool:
    expected: Tensor = model(**inputs).logits
    try:
        with _changed(layers):
            found: Tensor = model(**inputs).logits
    except RuntimeError:  # not every processor has these operations
        return False
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def _layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the encoder's layers, if all of them are what we take them for."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _KINDS or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return []
    config = cast(Any, config)
    if config.is_decoder or config._attn_implementation != "sdpa":
        return []
    if "forward" in vars(model) or torch.is_autocast_enabled("cpu"):  # accelerate's, which lowers the precision
        return []
    layers = [model.get_submodule(path) for path in anatomy(model).layers]
    parts = [layer.get_submodule(part) for layer in layers for part in _PARTS]
    plain = all(type(part) is nn.Linear and part.weight.dtype == torch.float32 for part in parts)
    return layers if plain and not any(_is_watched(inside) for layer in layers for inside in layer.modules()) else []


def _is_watched(module: nn.Module) -> bool:
    """Return whether somebody expects to be told what goes through it, or has changed it already."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


@contextmanager
def _changed(layers: Sequence[nn.Module], *, whole: bool = False) -> Iterator[None]:
    """Inside the block, layers compute what they do in another way; of the last one, the first token alone, or all."""
    with ExitStack() as held:
        for layer in layers:
            layer.forward = _forward_of(layer, first_only=layer is layers[-1] and not whole)
            held.callback(vars(layer).pop, "forward", None)  # another thread may have been faster
        yield


def _forward_of(layer: Any, *, first_only: bool) -> Callable[..., Tensor]:
    attention, act = layer.attention.self, layer.intermediate.intermediate_act_fn
    size, scale = attention.attention_head_size, attention.scaling
    fused = getattr(act, "act", None) is gelu
    asking = [_product(attention.query)] if first_only else []
    answering = _product(*([] if first_only else [attention.query]), attention.key, attention.value)
    after, narrow = _product(layer.attention.output.dense), _product(layer.output.dense)
    wide = _product(layer.intermediate.dense, act="gelu" if fused else "none")

    def forward(hidden: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        rows = hidden
        if first_only:
            rows, mask = hidden[:, :1], None if mask is None else mask[:, :, :1]
        parts = [*(ask(rows) for ask in asking), *torch.split(answering(hidden), attention.all_head_size, -1)]
        query, key, value = (part.view(*part.shape[:2], -1, size).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        attended = layer.attention.output.LayerNorm(after(seen.transpose(1, 2).flatten(2)) + rows)
        inner = wide(attended)
        return cast(Tensor, layer.output.LayerNorm(narrow(inner if fused else act(inner)) + attended))

    return forward


def _product(*linear: nn.Linear, act: str = "none") -> Product:
    """Return what linear layers give side by side, their weights laid out once."""
    weight = torch.cat([one.weight for one in linear])
    bias = torch.cat([one.bias for one in linear])
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return partial(_multiplied, packed, bias, act)


def _multiplied(weight: Tensor, bias: Tensor, act: str, rows: Tensor) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(rows, weight, bias, act, [], "none"))
