"""Recalibrators without a formula: each class's probability against the rest, then scaled to sum to 1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import Array, bin_count, checked_labels, checked_logits, like
from calmix.errors import InputError

__all__ = ["Histogram", "Isotonic", "pool_adjacent_violators"]

Curve = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Isotonic:
    """For each class, the rising curve from probability to frequency that fits best (Zadrozny & Elkan 2002).

    `curves[k]` holds the curve's probabilities and frequencies; between them it is straight. No class that exists
    gets less than `floor`: never seen in n rows is not impossible, and one such row would cost an infinite NLL.
    """

    curves: tuple[Curve, ...]
    floor: float = 0.0

    @classmethod
    def fit(cls, logits: Array, labels: Array) -> "Isotonic":
        """The curves that minimise the squared error on `labels`, integers or targets, a class at a time."""
        probs, shares = _probs_and_shares(logits, labels)
        return cls(tuple(_curve(p, share) for p, share in zip(probs.T, shares, strict=True)), _floor(len(probs)))

    def __call__(self, logits: Array) -> Array:
        """Calibrated probabilities in float64, as numpy for numpy and on its device for a tensor."""
        p = _probs(logits, len(self.curves))
        columns = []
        for column, (xs, ys) in zip(p.unbind(1), self.curves, strict=True):
            columns.append(_interpolate(column.contiguous(), p.new_tensor(xs), p.new_tensor(ys)))
        return like(_renormalised(torch.stack(columns, 1), p, self.floor), logits)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        curves = [[list(xs), list(ys)] for xs, ys in self.curves]
        return {"kind": "isotonic", "curves": curves, "floor": self.floor}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Isotonic":
        """The curves that `to_json` wrote down."""
        curves = tuple((tuple(map(float, xs)), tuple(map(float, ys))) for xs, ys in state["curves"])
        return cls(curves, float(state["floor"]))


@dataclass(frozen=True)
class Histogram:
    """For each class, the frequency observed in each bin of its probability (Zadrozny & Elkan 2001).

    `frequencies[k][m]` belongs to probabilities of class k in (edges[k][m], edges[k][m + 1]]; `floor` as in
    `Isotonic`.
    """

    edges: tuple[tuple[float, ...], ...]  # the inner ones
    frequencies: tuple[tuple[float, ...], ...]
    floor: float = 0.0

    @classmethod
    def fit(cls, logits: Array, labels: Array, *, bins: int = 15) -> "Histogram":
        """The frequencies in (about) equally full bins; equal probabilities share a bin.

        How full a bin is, is the mean of its share of the rows and its share of p(1 − p), which is large where the
        class is in doubt. By rows alone rare classes would be lost: of a hundred each has 1 % of the rows, and the
        last of fifteen bins, which holds 7 %, could not tell its rows from six others. `labels` are integers, or
        target probabilities [n, K], whose mean in the bin is then the frequency.
        """
        bins = bin_count(bins)
        probs, shares = _probs_and_shares(logits, labels)
        edges, frequencies = [], []
        for p, share in zip(probs.T, shares, strict=True):
            inner = _inner_edges(p, bins)
            where = np.searchsorted(inner, p)
            hits = np.bincount(where, weights=share, minlength=len(inner) + 1)
            frequencies.append(tuple((hits / np.bincount(where, minlength=len(inner) + 1)).tolist()))
            edges.append(tuple(inner.tolist()))
        return cls(tuple(edges), tuple(frequencies), _floor(len(probs)))

    def __call__(self, logits: Array) -> Array:
        """Calibrated probabilities in float64, as numpy for numpy and on its device for a tensor."""
        p = _probs(logits, len(self.edges))
        columns = []
        for column, inner, values in zip(p.unbind(1), self.edges, self.frequencies, strict=True):
            columns.append(p.new_tensor(values)[torch.searchsorted(p.new_tensor(inner), column.contiguous())])
        return like(_renormalised(torch.stack(columns, 1), p, self.floor), logits)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        return {
            "kind": "histogram",
            "edges": [list(e) for e in self.edges],
            "frequencies": [list(f) for f in self.frequencies],
            "floor": self.floor,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Histogram":
        """The bins that `to_json` wrote down."""
        edges, frequencies = ([tuple(map(float, row)) for row in state[key]] for key in ("edges", "frequencies"))
        return cls(tuple(edges), tuple(frequencies), float(state["floor"]))


def _inner_edges(p: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """The upper edges of all bins but the last; fewer where equal probabilities leave no room for them."""
    ranked = np.sort(p)
    filled, doubt = np.arange(1, len(p) + 1) / len(p), (ranked * (1 - ranked)).cumsum()
    if doubt[-1] > 0:
        filled = (filled + doubt / doubt[-1]) / 2
    ends = ranked[np.searchsorted(filled, np.arange(1, bins) / bins)]
    return np.unique(ends[ends < ranked[-1]])


def pool_adjacent_violators(
    values: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The means of the blocks of the non-decreasing fit to `values`, and where each block starts.

    Every falling run is pooled at once, round after round: the order of pooling does not change the result,
    and a few rounds of whole-array steps replace a loop over the rows.
    """
    starts = np.arange(len(values))
    sums = values * weights
    while True:
        means = sums / weights
        rising = np.concatenate([[True], means[1:] > means[:-1]])
        if rising.all():
            return means, starts
        heads = np.flatnonzero(rising)
        starts, sums, weights = starts[heads], np.add.reduceat(sums, heads), np.add.reduceat(weights, heads)


def _curve(p: NDArray[np.float64], share: NDArray[Any]) -> Curve:
    xs, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    weights = counts.astype(np.float64)
    means, starts = pool_adjacent_violators(np.bincount(inverse, weights=share) / weights, weights)
    ends = np.append(starts[1:], len(xs)) - 1
    # Both ends of each flat stretch describe the curve completely.
    points = np.stack([starts, ends], 1).ravel()
    keep = np.concatenate([[True], points[1:] != points[:-1]])
    return tuple(xs[points[keep]].tolist()), tuple(np.repeat(means, 2)[keep].tolist())


def _interpolate(at: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    if len(xs) == 1:
        return ys.expand_as(at)
    at = at.clamp(xs[0], xs[-1])
    right = torch.searchsorted(xs, at).clamp_(1, len(xs) - 1)
    share = (at - xs[right - 1]) / (xs[right] - xs[right - 1])
    return torch.lerp(ys[right - 1], ys[right], share)


def _floor(rows: int) -> float:
    """The rule of succession for something that never happened in so many rows."""
    return 1 / (rows + 2)


def _renormalised(values: Tensor, original: Tensor, floor: float) -> Tensor:
    """Rows scaled to sum to 1; a choice that does not exist stays at 0; a row of zeros stays as it was."""
    values = values.clamp(min=floor).masked_fill(original == 0, 0)
    total = values.sum(1, keepdim=True)
    return torch.where(total > 0, values / total.clamp(min=1e-300), original)


def _probs(logits: Array, classes: int) -> Tensor:
    z = checked_logits(logits)
    if z.shape[1] != classes:
        raise InputError(f"logits has {z.shape[1]} classes; this was fitted for {classes}")
    return torch.softmax(z, 1)


def _probs_and_shares(logits: Array, labels: Array) -> tuple[NDArray[np.float64], Iterator[NDArray[Any]]]:
    """Probabilities [n, K], and for one class after the other how much of each row is of it.

    On the host, where sorting and pooling one class at a time is at home.
    """
    z, y = checked_labels(logits, labels)
    wanted = y.cpu().numpy()
    shares = iter(wanted.T) if wanted.ndim == 2 else (wanted == k for k in range(z.shape[1]))
    return torch.softmax(z, 1).cpu().numpy(), shares
