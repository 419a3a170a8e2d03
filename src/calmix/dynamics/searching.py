"""Partners by saliency over the whole training set rather than inside a batch."""

from collections.abc import Callable
from functools import partial
from math import pi

import torch
from torch import Tensor

from calmix.dynamics.saliency import normalised

__all__ = [
    "circle_farthest",
    "circle_nearest",
    "cosine_farthest",
    "cosine_nearest",
    "distinct_partners",
    "set_partners",
]


def set_partners(
    vectors: Tensor,
    halves: Tensor,
    *,
    generator: torch.Generator,
    k: int = 100,
    on_circle: bool = False,
    chunk: int = 4096,
) -> tuple[Tensor, Tensor]:
    """Return a most similar and a most dissimilar row of the other half for every sample of a set.

    Args:
        vectors: what is compared by cosine [n, D]: `residual` or `saliency_map`, or `two_class_vectors`.
        halves: 0 or 1, or -1 for a sample of neither, which is its own partner, as is every sample when one
            of the halves is empty.
        generator: for the draw of the dissimilar partner.
        k: the dissimilar partner is drawn from the k farthest. The farthest alone are a handful of
            samples that everyone would share: see `distinct_partners`.
        on_circle: say that the vectors are the `residual` of three classes. They lie in a plane, and a sort by
            angle replaces the comparison of all pairs: n log n instead of n².
        chunk: how many samples are compared with all others at a time, when not on the circle.
    """
    near: Callable[..., Tensor] = circle_nearest if on_circle else partial(cosine_nearest, chunk=chunk)
    far: Callable[..., Tensor] = circle_farthest if on_circle else partial(cosine_farthest, chunk=chunk)
    similar = torch.arange(len(vectors), device=vectors.device)
    dissimilar = similar.clone()
    sides = [torch.nonzero(halves.to(torch.int8) == side)[:, 0] for side in (0, 1)]
    if min(map(len, sides)) > 0:
        for ours, theirs in (sides, sides[::-1]):
            similar[ours] = theirs[near(vectors[ours], vectors[theirs])]
            dissimilar[ours] = theirs[far(vectors[ours], vectors[theirs], k=k, generator=generator)]
    return similar, dissimilar


def circle_nearest(queries: Tensor, keys: Tensor) -> Tensor:
    """Return, for each query, the row of the key at the smallest angle: `residual`s of three classes [·, 3].

    Exact: cosines near 1 cannot be told apart even in float64, angles can.
    """
    start, order = _arc(_angles(queries), _angles(keys), 1)
    return order[start % len(order)]


def circle_farthest(queries: Tensor, keys: Tensor, *, k: int, generator: torch.Generator) -> Tensor:
    """Return, for each query, a row drawn from the k keys at the largest angles, as in `circle_nearest`."""
    k = min(k, len(keys))
    start, order = _arc(_angles(queries) + pi, _angles(keys), k)
    return order[(start + _draws(k, len(queries), generator, queries.device)) % len(order)]


def cosine_nearest(queries: Tensor, keys: Tensor, *, chunk: int = 4096) -> Tensor:
    """Return, for each query, the row of the key with the largest cosine, `chunk` queries at a time."""
    unit = normalised(keys)
    return torch.cat([(normalised(part) @ unit.T).argmax(1) for part in torch.split(queries, chunk)])


def cosine_farthest(queries: Tensor, keys: Tensor, *, k: int, generator: torch.Generator, chunk: int = 4096) -> Tensor:
    """Return, for each query, a row drawn from the k keys with the smallest cosines."""
    k = min(k, len(keys))
    unit = normalised(keys)
    draws = _draws(k, len(queries), generator, queries.device)
    rows = [
        (normalised(part) @ unit.T).topk(k, largest=False).indices.gather(1, draw[:, None])[:, 0]
        for part, draw in zip(torch.split(queries, chunk), torch.split(draws, chunk), strict=True)
    ]
    return torch.cat(rows)


def distinct_partners(partners: Tensor) -> int:
    """Return how many different samples serve as partners: few means the mix sees the same texts for ever."""
    return int(torch.unique(partners).numel())


def _draws(k: int, n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randint(k, (n,), generator=generator, device=generator.device).to(device)


def _angles(residuals: Tensor) -> Tensor:
    """The direction of rows that sum to zero, in the plane they lie in."""
    if residuals.shape[1] != 3:
        raise ValueError(f"only residuals of three classes lie on a circle, not of {residuals.shape[1]}")
    a, b, c = residuals.double().unbind(1)
    return torch.atan2((a - b) / 2**0.5, (a + b - 2 * c) / 6**0.5)


def _arc(targets: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The keys in order of angle, and where in it the k that are closest to each target begin (modulo their number)."""
    angles, order = keys.sort()
    rolled = torch.cat([angles - 2 * pi, angles, angles + 2 * pi])
    wanted = torch.remainder(targets + pi, 2 * pi) - pi
    high = torch.searchsorted(rolled, wanted).clamp(k, len(rolled) - k - 1)
    low = high - k
    for _ in range(k.bit_length()):
        middle = (low + high) // 2
        # Is the window from `middle` too far to the left: is the key it lacks on the right the closer one?
        shift = (wanted - rolled[middle] > rolled[middle + k] - wanted) & (low < high)
        low, high = torch.where(shift, middle + 1, low), torch.where(shift, high, torch.minimum(middle, high))
    return low, order
