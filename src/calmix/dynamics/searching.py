"""Partners by saliency over the whole training set rather than inside a batch."""

from math import ceil, sqrt

import torch
from torch import Tensor

from calmix.dynamics.saliency import normalised

__all__ = [
    "Vectors",
    "distinct_partners",
    "farthest_of_drawn",
    "nearest_of_all",
    "nearest_of_three_classes",
    "random_partners",
    "set_partners",
]

Vectors = Tensor | tuple[Tensor, ...]
"""What samples are compared by: the cosine of rows [n, D], or of several such the product of their cosines."""

# Entries of a block of similarities: 256 MB in float32, whatever the number of samples.
_BLOCK = 2**26
# So many queries share a draw of candidates: enough for a matrix product, few enough that partners stay many.
_SHARE = 8


def set_partners(
    vectors: Vectors,
    halves: Tensor,
    *,
    generator: torch.Generator,
    candidates: int = 100,
    three_classes: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return a most similar and a most dissimilar row of the other half for every sample of a set.

    Args:
        vectors: what is compared: `saliency_map`, `residual`, `two_class_vectors`, or (residual, head inputs).
        halves: 0 or 1, or -1 for a sample of neither, which is its own partner, as is every sample when one
            of the halves is empty.
        generator: for the draw of candidates; on any device.
        candidates: the dissimilar partner is the farthest of this many, drawn anew for every few samples; 0 takes
            the farthest of all. These are a handful of samples that everyone would share: see `distinct_partners`.
            From a half of n samples at most √n are drawn, so that there are as many for everyone to choose from.
        three_classes: say that the vectors are the `saliency_map` or `residual` of three classes with hard labels.
            A sort by angle then replaces the comparison of all pairs: n log n instead of n².
    """
    parts = (vectors,) if isinstance(vectors, Tensor) else vectors
    similar = torch.arange(len(halves), device=halves.device)
    dissimilar = similar.clone()
    sides = [torch.nonzero(halves.to(torch.int8) == side)[:, 0] for side in (0, 1)]
    if min(map(len, sides)) > 0:
        for ours, theirs in (sides, sides[::-1]):
            queries, keys = (tuple(part[rows] for part in parts) for rows in (ours, theirs))
            similar[ours] = theirs[_nearest(queries, keys, three_classes)]
            if candidates:
                drawn = min(candidates, ceil(sqrt(len(theirs))))
                dissimilar[ours] = theirs[farthest_of_drawn(queries, keys, drawn, generator=generator)]
            else:
                opposite = (-queries[0], *queries[1:])
                dissimilar[ours] = theirs[_nearest(opposite, keys, three_classes)]
    return similar, dissimilar


def random_partners(halves: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return a row of the other half, drawn for every sample; one of neither half (-1) is its own partner."""
    partners = torch.arange(len(halves), device=halves.device)
    sides = [torch.nonzero(halves.to(torch.int8) == side)[:, 0] for side in (0, 1)]
    if min(map(len, sides)) > 0:
        for ours, theirs in (sides, sides[::-1]):
            drawn = torch.randint(len(theirs), (len(ours),), generator=generator, device=generator.device)
            partners[ours] = theirs[drawn.to(halves.device)]
    return partners


def nearest_of_all(queries: tuple[Tensor, ...], keys: tuple[Tensor, ...]) -> Tensor:
    """Return, for each query, the row of the most similar key: all pairs are compared, a block at a time."""
    units = [normalised(part) for part in keys]
    rows = max(1, _BLOCK // len(units[0]))
    found = []
    for block in zip(*(torch.split(part, rows) for part in queries), strict=True):
        alike = torch.ones((), device=units[0].device, dtype=units[0].dtype)
        for part, unit in zip(block, units, strict=True):
            alike = alike * (normalised(part) @ unit.T)
        found.append(alike.argmax(1))
    return torch.cat(found)


def farthest_of_drawn(
    queries: tuple[Tensor, ...], keys: tuple[Tensor, ...], candidates: int, *, generator: torch.Generator
) -> Tensor:
    """Return, for each query, the row of the least similar of so many keys, drawn anew for every few queries."""
    units, n = [normalised(part) for part in keys], len(queries[0])
    few = min(_SHARE, ceil(sqrt(n)))
    groups = ceil(n / few)
    drawn = torch.randint(len(units[0]), (groups, candidates), generator=generator, device=generator.device)
    drawn = drawn.to(units[0].device)
    # The last group is filled up with the last query.
    members = torch.arange(groups * few, device=drawn.device).clamp_max(n - 1).view(groups, few)
    block = max(1, _BLOCK // (candidates * sum(part.shape[1] for part in units)))
    found = []
    for picked, rows in zip(torch.split(drawn, block), torch.split(members, block), strict=True):
        alike = torch.ones((), device=drawn.device, dtype=units[0].dtype)
        for part, unit in zip(queries, units, strict=True):
            alike = alike * (normalised(part[rows.flatten()]).view(*rows.shape, -1) @ unit[picked].mT)
        found.append(picked.gather(1, alike.argmin(2)).flatten())
    return torch.cat(found)[:n]


def nearest_of_three_classes(queries: Tensor, keys: Tensor) -> Tensor:
    """Return, for each query, the row of the key at the smallest angle: `saliency_map`s or `residual`s [·, 3].

    The label's entry is as large as the other two together. So all samples of a label lie in a plane, on an arc
    from one of the other classes to the other, and the nearest of them is a neighbour of the query's own angle in
    that plane, or an end of the arc. Exact: cosines near 1 cannot be told apart even in float64, angles can.
    """
    if queries.shape[1] != 3 or keys.shape[1] != 3:
        raise ValueError(f"vectors of three classes have 3 entries, not {queries.shape[1]} and {keys.shape[1]}")
    queries, keys = normalised(queries.double()), normalised(keys.double())
    label = torch.where(keys.any(1), keys.abs().argmax(1), -1)
    found = torch.zeros(len(queries), dtype=torch.int64, device=keys.device)
    shortest = torch.full_like(queries[:, 0], torch.inf)
    for gold in range(3):
        members = torch.nonzero(label == gold)[:, 0]
        if len(members) == 0:
            continue
        sign = keys[members[0], gold].sign()
        angles, order = _angle(keys[members], gold, sign).sort()
        members = members[order]
        place = torch.searchsorted(angles, _angle(queries, gold, sign))
        for rank in (place - 1, place, torch.zeros_like(place), torch.full_like(place, len(members) - 1)):
            row = members[rank.clamp(0, len(members) - 1)]
            distance = (queries - keys[row]).square().sum(1)
            found = torch.where(distance < shortest, row, found)
            shortest = torch.minimum(distance, shortest)
    return found


def distinct_partners(partners: Tensor) -> int:
    """Return how many different samples serve as partners: few means the mix sees the same texts for ever."""
    return int(torch.unique(partners).numel())


def _nearest(queries: tuple[Tensor, ...], keys: tuple[Tensor, ...], three_classes: bool) -> Tensor:
    return nearest_of_three_classes(queries[0], keys[0]) if three_classes else nearest_of_all(queries, keys)


def _angle(vectors: Tensor, gold: int, sign: Tensor) -> Tensor:
    """The direction of vectors in the plane that a label's vectors lie in: 0 where the other two classes are level."""
    one, other = (vectors[:, k] for k in range(3) if k != gold)
    return torch.atan2((one - other) / sqrt(2), (sign * vectors[:, gold] + (one + other) / 2) / sqrt(1.5))
