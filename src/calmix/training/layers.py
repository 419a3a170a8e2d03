"""Layers of encoders of BERT's kind in few kernels, forward and backward, for one model or several side by side."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from calmix.kernels import Agrees, usable
from calmix.models import anatomy
from calmix.training.layout import joined
from calmix.training.one_layer import ASKED, ASKING, OTHERS, Layer, Shape, check_of, forward, length_of
from calmix.training.using import Use

__all__ = ["Layers", "check_for", "checks_for", "side_by_side"]

# Those that call the parts of a layer by the names of `one_layer`.
_KINDS = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
# A head of a text is done at once, all its tokens beside all: longer texts are left to kernels made for them.
_LONGEST = 128
# The length of text that kernels are tried with before it is known how long texts are.
_TRIED = 32


class Layers:
    """The layers of an encoder, whose forward and backward go around transformers' own.

    Between two products of matrices there is one kernel, where torch has four or five for biases, dropout, residuals
    and normalisation, and twice as many backward. Queries, keys and values are one product. Dropout is drawn by the
    kernels, from seeds that torch's generator draws for each forward.

    Args:
        model: whose layers they are.
        copies: of its weights, by name, those of `side_by_side` next to each other in memory.
    """

    def __init__(self, model: nn.Module, copies: Mapping[str, Tensor]) -> None:
        shape = cast(Shape, _shape_of(model))
        self.device = next(model.parameters()).device
        self.layers: list[Layer] = []
        self.joined: dict[tuple[str, ...], Tensor] = {}
        for place, path in enumerate(anatomy(model).layers):
            weights = {}
            for kind, axis in (("weight", -2), ("bias", -1)):
                names = tuple(f"{path}.{part}.{kind}" for part in ASKING)
                whole = joined([copies[name] for name in names], axis).requires_grad_()
                weights[f"{ASKED}.{kind}"] = self.joined[names] = whole
                weights |= {f"{part}.{kind}": copies[f"{path}.{part}.{kind}"] for part in OTHERS}
            self.layers.append(Layer(shape, model.get_submodule(path), weights, 3 * place))

    @staticmethod
    def serves(model: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
        """Return whether the layers are what we take them for, and the kernels do what torch does with them."""
        able, check = device.type == "cuda" and dtype == torch.bfloat16, check_for(model)
        return able and check is not None and usable(check, device)

    def length_for(self, width: int) -> int | None:
        """Return the length that kernels are compiled for to serve texts of a width; None if they cannot serve them.

        Those for long texts want more of a GPU than every one has.
        """
        length = length_of(width)
        served = width <= _LONGEST and usable(check_of(self.layers[0].shape, length), self.device)
        return length if served else None

    def fit(self, mask: Tensor) -> bool:
        """Return whether they can be used for texts: short ones, and so many that places in memory have 32 bits.

        Nor if somebody expects to be told what goes on inside a layer, or edits it: that must be transformers'.
        """
        shape = self.layers[0].shape
        most = mask.numel() * max(3 * shape.hidden, shape.inner)
        inside = (part for layer in self.layers for part in layer.module.modules() if part is not layer.module)
        watched = any(part._forward_hooks or part._forward_pre_hooks for part in inside)
        return self.length_for(mask.shape[-1]) is not None and most < 2**31 and not watched

    @property
    def sites(self) -> int:
        """How often something is dropped."""
        return 3 * len(self.layers)

    @contextmanager
    def used(self, use: Use) -> Iterator[None]:
        """Inside the block, have the model's layers computed by kernels."""
        with ExitStack() as held:
            for layer in self.layers:
                layer.module.forward = partial(forward, layer, use)
                held.callback(vars(layer.module).pop, "forward", None)
            yield

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of weights that were used as one, by their own names, and clear them."""
        found: dict[str, Tensor] = {}
        for names, whole in self.joined.items():
            if whole.grad is not None:
                axis = -2 if names[0].endswith("weight") else -1
                found |= zip(names, whole.grad.chunk(len(names), axis), strict=True)
                whole.grad = None
        return found


def side_by_side(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of the weights whose copies are to lie next to each other: of queries, keys and values."""
    layers = anatomy(model).layers
    return [tuple(f"{path}.{part}.{kind}" for part in ASKING) for path in layers for kind in ("weight", "bias")]


def _shape_of(model: nn.Module) -> Shape | None:
    """Return what the kernels have to know of a model's layers; None if these are not what we take them for."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _KINDS or config.is_decoder or config.add_cross_attention:
        return None
    shape = Shape(config.hidden_size, config.intermediate_size, config.num_attention_heads)
    layers: list[Any] = [model.get_submodule(path) for path in anatomy(model).layers]
    if shape.size not in (16, 32, 64, 128) or not layers:
        return None
    for layer in layers:
        parts = [layer.get_submodule(name) for name in (*ASKING, *OTHERS)]
        wanted = [nn.LayerNorm if name.endswith("LayerNorm") else nn.Linear for name in (*ASKING, *OTHERS)]
        if (
            any(type(part) is not kind for part, kind in zip(parts, wanted, strict=True))
            or not all(weight.requires_grad for weight in layer.parameters())
            or len(list(layer.parameters())) != 2 * len(parts)
            or getattr(layer.intermediate.intermediate_act_fn, "act", None) is not functional.gelu
            or any("forward" in vars(inside) for inside in layer.modules())
        ):
            return None
    return shape


def check_for(model: nn.Module) -> Agrees | None:
    """Return what tries the kernels for a model's layers; None if these are not what we take them for."""
    shape = _shape_of(model)
    return None if shape is None else check_of(shape, _TRIED)


def checks_for(model: nn.Module, widths: Iterable[int]) -> list[Agrees]:
    """Return what tries the kernels for a model's layers with texts of some widths; none if they cannot serve them."""
    shape = _shape_of(model)
    lengths = {_TRIED, *(length_of(width) for width in widths if width <= _LONGEST)}
    return [] if shape is None else [check_of(shape, length) for length in sorted(lengths)]
