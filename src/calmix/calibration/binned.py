"""Metrics over fixed, equal-width bins of confidence, and the few sums they are made of."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import Array, bin_count, class_index, pair, whole
from calmix.calibration.compiled import compiled_sums
from calmix.calibration.confidence import stream
from calmix.errors import InputError

__all__ = ["BinCounts", "Reliability", "bin_edges", "bin_index", "ece", "mce", "oe", "reliability"]


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram in numbers; bins without a row have NaN for confidence and accuracy."""

    edges: NDArray[np.float64]  # [bins + 1]
    counts: NDArray[np.int64]  # [bins]
    confidence: NDArray[np.float64]  # [bins], the mean
    accuracy: NDArray[np.float64]  # [bins]


@dataclass(frozen=True)
class BinCounts:
    """Rows, confidence and hits summed by bin: all that ECE, MCE, OE and accuracy need of the data.

    Counts of different parts of the data add up, in any order and across processes, to those of the whole:

    >>> probs = np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])
    >>> labels = np.array([0, 1, 1])
    >>> whole = BinCounts.of(probs, labels)
    >>> parts = BinCounts.empty().update(probs[:1], labels[:1]) + BinCounts.of(probs[1:], labels[1:])
    >>> parts.ece() == whole.ece()
    True
    """

    counts: NDArray[np.int64]
    confidence: NDArray[np.float64]
    hits: NDArray[np.int64]
    positive_class: int | None = None

    @classmethod
    def empty(cls, bins: int = 15, *, positive_class: int | None = None) -> "BinCounts":
        """No rows yet."""
        if positive_class is not None:
            positive_class = whole(positive_class, "positive_class")
        return cls.from_array(np.zeros((3, bin_count(bins))), positive_class=positive_class)

    @classmethod
    def of(cls, probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> "BinCounts":
        """The counts of these rows: top label, or `positive_class` against the rest."""
        p, y = pair(probs, labels)
        bins = bin_count(bins)
        if positive_class is not None:
            positive_class = class_index(positive_class, p.shape[1])
        counted = compiled_sums(p, y, bins, positive_class)
        if counted is not None:
            return cls.from_array(counted, positive_class=positive_class)
        sums = room = None
        for confidence, hit in stream(p, y, positive_class):
            if sums is None or room is None:
                sums = torch.zeros(3, bins, dtype=torch.float64, device=confidence.device)
                # Reused by every chunk: fresh memory costs more than the arithmetic done in it.
                room = torch.empty(3, len(confidence), dtype=torch.float64, device=confidence.device)
            exact, scaled, where = room[:, : len(confidence)]
            where = _bin_index(confidence, bins, exact, scaled, where.view(torch.int64))
            # Hits are counted in a second row of bins, which saves a pass over the data.
            where.add_(hit, alpha=bins)
            rows = torch.bincount(where, minlength=2 * bins).view(2, bins)
            sums[0] += rows.sum(0)
            sums[1] += torch.bincount(where, weights=exact, minlength=2 * bins).view(2, bins).sum(0)
            sums[2] += rows[1]
        assert sums is not None
        return cls.from_array(sums.cpu().numpy(), positive_class=positive_class)

    def update(self, probs: Array, labels: Array) -> "BinCounts":
        """These counts and those of more rows, in the same bins."""
        return self + BinCounts.of(probs, labels, bins=len(self.counts), positive_class=self.positive_class)

    def __add__(self, other: "BinCounts") -> "BinCounts":
        mine, others = (len(self.counts), self.positive_class), (len(other.counts), other.positive_class)
        if mine != others:
            raise InputError(f"cannot merge counts of (bins, positive class) {mine} with {others}")
        return BinCounts.from_array(self.to_array() + other.to_array(), positive_class=self.positive_class)

    def to_array(self) -> NDArray[np.float64]:
        """Rows, confidence and hits as one [3, bins] array: sum it over processes to merge them all."""
        return np.stack([self.counts, self.confidence, self.hits]).astype(np.float64)

    @classmethod
    def from_array(cls, sums: NDArray[np.float64], *, positive_class: int | None = None) -> "BinCounts":
        """The counts that `to_array` wrote, or a sum of such arrays."""
        rows, confidence, hits = np.asarray(sums, dtype=np.float64)
        return cls(rows.astype(np.int64), confidence, hits.astype(np.int64), positive_class)

    def reliability(self) -> Reliability:
        """The mean confidence and the accuracy of each bin."""
        rows = np.where(self.counts > 0, self.counts, np.nan)
        edges = bin_edges(len(self.counts))
        return Reliability(edges, self.counts, self.confidence / rows, self.hits / rows)

    def accuracy(self) -> float:
        """The share of hits."""
        return float(self.hits.sum() / self._total())

    def ece(self) -> float:
        """Σ |B|/n · |confidence − accuracy|."""
        return float(np.abs(self.confidence - self.hits).sum() / self._total())

    def mce(self) -> float:
        """The largest |confidence − accuracy| of a bin that holds a row."""
        self._total()
        rows = np.maximum(self.counts, 1)
        return float(np.max(np.abs(self.confidence - self.hits) / rows))

    def oe(self) -> float:
        """Σ |B|/n · confidence · max(confidence − accuracy, 0)."""
        rows = np.maximum(self.counts, 1)
        return float((self.confidence / rows * np.maximum(self.confidence - self.hits, 0)).sum() / self._total())

    def _total(self) -> int:
        total = int(self.counts.sum())
        if total == 0:
            raise InputError("no rows were counted; there is nothing to measure")
        return total


def ece(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> float:
    """The expected calibration error: Σ |B|/n · |confidence − accuracy| over equal-width bins.

    Bin m is (m/M, (m+1)/M], with 0 in the first (Guo et al. 2017). Of several largest classes the first wins.
    `positive_class=k` looks at the probability of class k instead of the largest one.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(ece(probs, np.array([0, 1, 1, 1])), 6)
    0.4
    """
    return BinCounts.of(probs, labels, bins=bins, positive_class=positive_class).ece()


def mce(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> float:
    """The maximum calibration error: the worst bin's |confidence − accuracy|, however few rows it holds."""
    return BinCounts.of(probs, labels, bins=bins, positive_class=positive_class).mce()


def oe(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> float:
    """The overconfidence error: Σ |B|/n · confidence · max(confidence − accuracy, 0) (Thulasidasan et al. 2019)."""
    return BinCounts.of(probs, labels, bins=bins, positive_class=positive_class).oe()


def reliability(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> Reliability:
    """The reliability diagram in numbers: edges, counts, mean confidence and accuracy of each bin."""
    return BinCounts.of(probs, labels, bins=bins, positive_class=positive_class).reliability()


def bin_edges(bins: int) -> NDArray[np.float64]:
    """The edges 0, 1/M … 1 of `bins` equal-width bins."""
    return np.arange(bins + 1) / bins


def bin_index(confidence: Tensor, bins: int) -> Tensor:
    """The bin (m/M, (m+1)/M] of each confidence, with 0 in the first; exact on the edges."""
    exact = torch.empty_like(confidence, dtype=torch.float64)
    where = torch.empty_like(confidence, dtype=torch.int64)
    return _bin_index(confidence, bins, exact, torch.empty_like(exact), where)


def _bin_index(confidence: Tensor, bins: int, exact: Tensor, scaled: Tensor, where: Tensor) -> Tensor:
    """`bin_index` written to `where`; `exact` becomes the confidence in float64, `scaled` is overwritten."""
    exact.copy_(confidence)
    torch.mul(exact, bins, out=scaled).ceil_().sub_(1).clamp_(0, bins - 1)
    if confidence.dtype == torch.float64:
        # The product may have rounded to the other side of an edge (from float32 it is exact).
        scaled.add_(exact <= scaled / bins, alpha=-1).add_(exact > (scaled + 1) / bins).clamp_(0, bins - 1)
    return where.copy_(scaled)
