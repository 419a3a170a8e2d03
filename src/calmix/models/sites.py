"""Places inside a network, and replacing the tensor that passes there for one forward."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.models.anatomy import Anatomy, averages_scores

__all__ = ["Edit", "Site", "head_input", "last_tokens", "pooled", "rewriting", "site_of_layer"]

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Site:
    """A place in a network: what the module at `path` reads (`input`) or returns (`output`)."""

    path: str
    side: Literal["input", "output"] = "output"
    rows: int = 0
    """The axis of the rows there: an edit sees it as the first."""
    call: int | None = None
    """Which call of the module in a forward is meant, where it serves as several layers; None: every one."""


def site_of_layer(parts: Anatomy, layer: int) -> Site:
    """Return the site after encoder layer `layer`, counted from 1; 0 is the input embeddings of texts."""
    if not parts.reads_once:
        raise InputError("its decoder reads each text again: mix at inner or head")
    if layer == 0 and not parts.embeddings:
        raise InputError("it has no table of input embeddings to mix at")
    if layer == 0:
        return Site(parts.embeddings, rows=parts.rows)
    if not 1 <= layer <= len(parts.layers):
        known = f"0 to {len(parts.layers)}" if parts.layers else "only 0 (no hidden layers are found in it)"
        raise InputError(f"this model has no layer {layer} to mix at: it has {known}")
    path = parts.layers[layer - 1]
    call = parts.layers[: layer - 1].count(path) if parts.layers.count(path) > 1 else None
    return Site(path, rows=parts.rows, call=call)


@contextmanager
def rewriting(model: nn.Module, site: Site, edit: Edit) -> Iterator[None]:
    """Replace the tensor at a site by `edit(tensor)` in every forward inside the `with` block; refuse if none passed.

    Activation recomputation is switched off meanwhile for the site's own module and those around it: the
    recomputed forward runs in the backward pass, when this edit is gone or another one is in place, and its
    gradients would be wrong without any error.
    """
    module = model.get_submodule(site.path)
    recomputing = [m for m in _path_to(model, site.path) if getattr(m, "gradient_checkpointing", False)]
    for each in recomputing:
        each.gradient_checkpointing = False  # type: ignore[assignment]
    calls = 0

    def edited(tensor: Any) -> Any:
        nonlocal calls
        calls += 1
        if site.call is not None and calls != site.call + 1:
            return tensor
        if not isinstance(tensor, Tensor):
            raise InputError(f"{site.path} passes on {type(tensor).__name__}, not a tensor that could be changed")
        return edit(tensor.transpose(0, site.rows)).transpose(0, site.rows) if site.rows else edit(tensor)

    def on_output(_module: nn.Module, _args: Any, output: Any) -> Any:
        # DeBERTa's and MPNet's layers return tuples, OpenAI GPT's lists, the others a tensor.
        if type(output) in (tuple, list):
            return type(output)((edited(output[0]), *output[1:]))
        return edited(output)

    def on_input(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (edited(args[0]), *args[1:])

    if site.side == "output":
        handle = module.register_forward_hook(on_output)
    else:
        handle = module.register_forward_pre_hook(on_input)
    try:
        yield
        if calls <= (site.call or 0):
            raise InputError(f"{type(model).__name__} does not use {site.path} in a way that could be changed")
    finally:
        handle.remove()
        for each in recomputing:
            each.gradient_checkpointing = True  # type: ignore[assignment]


def _path_to(model: nn.Module, path: str) -> list[nn.Module]:
    """Return the modules from the model down to the one at `path`."""
    names = path.split(".")
    return [model.get_submodule(".".join(names[:depth])) for depth in range(len(names) + 1)]


@contextmanager
def head_input(model: nn.Module, parts: Anatomy) -> Iterator[list[Tensor]]:
    """Yield a list that receives, for each forward inside the block, what the head read.

    Decoder classifiers run their head on every token and pick one afterwards: pass what is collected here to
    `pooled` then.
    """
    collected: list[Tensor] = []

    def collect(_module: nn.Module, args: tuple[Any, ...]) -> None:
        collected.append(args[0])

    handle = model.get_submodule(parts.head).register_forward_pre_hook(collect)
    try:
        yield collected
    finally:
        handle.remove()


def pooled(features: Tensor, inputs: Mapping[str, Tensor], config: Any) -> Tensor:
    """Return one vector per sequence from the head's input: what its logits were made of.

    Where the head saw every token, that is the one whose scores are taken, the last that is no padding, or, where
    scores are averaged, the mean: the head is linear.
    """
    if features.dim() == 2:
        return features
    if averages_scores(config):
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).to(features.dtype)[..., None]
        return (features * mask).sum(1) / mask.sum(1)
    last = last_tokens(inputs["input_ids"], getattr(config, "pad_token_id", None))
    if getattr(config, "is_encoder_decoder", False):  # its decoder reads the text one place to the right
        last = (last + 1).clamp_max(features.shape[1] - 1)
    return features[torch.arange(last.shape[0], device=last.device), last]  # `len` would fix an exported graph's rows


def last_tokens(ids: Tensor, pad_token_id: int | None) -> Tensor:
    """Return where a decoder classifier reads each sequence: the rightmost token that is not padding."""
    positions = torch.arange(ids.shape[-1], device=ids.device)
    if pad_token_id is None:
        return positions[-1:].expand(ids.shape[:-1])
    return (positions * (ids != pad_token_id)).argmax(-1)
