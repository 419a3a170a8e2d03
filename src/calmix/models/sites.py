"""Places inside a network, and replacing the tensor that passes there for one forward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.models.anatomy import Anatomy

__all__ = ["Edit", "Site", "head_input", "last_tokens", "pooled", "rewriting", "site_of_layer"]

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Site:
    """A place in a network: what the module at `path` reads (`input`) or returns (`output`)."""

    path: str
    side: Literal["input", "output"] = "output"


def site_of_layer(parts: Anatomy, layer: int) -> Site:
    """Return the site after encoder layer `layer`, counted from 1; 0 is the input embeddings of texts."""
    if layer == 0:
        return Site(parts.embeddings)
    if not 1 <= layer <= len(parts.layers):
        known = f"0 to {len(parts.layers)}" if parts.layers else "only 0 (its layers share one module)"
        raise InputError(f"this model has no layer {layer} to mix at: it has {known}")
    return Site(parts.layers[layer - 1])


@contextmanager
def rewriting(model: nn.Module, site: Site, edit: Edit) -> Iterator[None]:
    """Replace the tensor at a site by `edit(tensor)` in every forward inside the `with` block.

    Activation recomputation is switched off meanwhile for the site's own module and those around it: the
    recomputed forward runs in the backward pass, when this edit is gone or another one is in place, and its
    gradients would be wrong without any error.
    """
    module = model.get_submodule(site.path)
    recomputing = [m for m in _path_to(model, site.path) if getattr(m, "gradient_checkpointing", False)]
    for each in recomputing:
        each.gradient_checkpointing = False  # type: ignore[assignment]

    def on_output(_module: nn.Module, _args: Any, output: Any) -> Any:
        # DeBERTa's and MPNet's layers return tuples, the others a tensor.
        if isinstance(output, tuple):
            return (edit(output[0]), *output[1:])
        return edit(output)

    def on_input(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (edit(args[0]), *args[1:])

    if site.side == "output":
        handle = module.register_forward_hook(on_output)
    else:
        handle = module.register_forward_pre_hook(on_input)
    try:
        yield
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


def pooled(features: Tensor, inputs: dict[str, Tensor], pad_token_id: int | None) -> Tensor:
    """Return one vector per sequence from the head's input: the last real token's where the head saw them all."""
    if features.dim() == 2:
        return features
    last = last_tokens(inputs["input_ids"], pad_token_id)
    return features[torch.arange(last.shape[0], device=last.device), last]  # `len` would fix an exported graph's rows


def last_tokens(ids: Tensor, pad_token_id: int | None) -> Tensor:
    """Return where a decoder classifier reads each sequence: the rightmost token that is not padding."""
    positions = torch.arange(ids.shape[-1], device=ids.device)
    if pad_token_id is None:
        return positions[-1:].expand(ids.shape[:-1])
    return (positions * (ids != pad_token_id)).argmax(-1)
