"""Copies of weights end to end in one stretch of memory, and gradients that lie in another as they do."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["joined", "lay_out", "like", "stretch_for"]

# Where each begins, in numbers: kernels read many at a time.
_EVEN = 16


def lay_out(
    weights: Mapping[str, Tensor], dtype: torch.dtype, *, together: Sequence[Sequence[str]] = ()
) -> dict[str, Tensor]:
    """Return copies of weights, which are views of one stretch of memory.

    Those whose names are given `together` lie next to each other (of each run, if weights are those of several along a
    first axis), so that `joined` makes one of them; runs are told by the axes that vectors have.
    """
    of = {name: tuple(names) for names in together for name in names}
    groups = dict.fromkeys(of.get(name, (name,)) for name in weights)
    places: dict[str, tuple[Sequence[int], int]] = {}
    end = 0
    for names in groups:
        begin, first = end, weights[names[0]]
        lead = first.shape[0] if len(names) > 1 and _is_stacked(first, names) else 1
        every = sum(weights[name].numel() // lead for name in names)
        for name in names:
            strides = list(torch.empty_like(weights[name]).stride())
            if len(names) > 1 and lead > 1:
                strides[0] = every
            places[name] = strides, begin
            begin += weights[name].numel() // lead
        end += -(-every * lead // _EVEN) * _EVEN
    whole = torch.empty(end, dtype=dtype, device=next(iter(weights.values())).device)
    return {n: whole.as_strided(w.shape, *places[n]).copy_(w.detach()) for n, w in weights.items()}


def _is_stacked(weight: Tensor, names: Sequence[str]) -> bool:
    """Return whether a weight is that of several runs: a vector has one axis more, and so has a matrix."""
    return weight.dim() == (2 if names[0].endswith("bias") else 3)


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return weights that were laid out together as one, along an axis; a view."""
    first = parts[0].detach()
    size = list(first.shape)
    size[axis] = sum(part.shape[axis] for part in parts)
    return first.as_strided(size, first.stride(), first.storage_offset())


def stretch_for(copies: Mapping[str, Tensor]) -> Tensor:
    """Return as much memory as copies lie in, filled with 0."""
    one = next(iter(copies.values()))
    return torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=one.dtype, device=one.device)


def like(stretch: Tensor, copy: Tensor) -> Tensor:
    """Return the part of a stretch of memory that lies in it as a copy lies in its own."""
    return stretch.as_strided(copy.shape, copy.stride(), copy.storage_offset())
