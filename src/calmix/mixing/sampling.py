"""Which samples share a batch: one epoch's batches, made on the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pool", "Sampling", "two_sided", "uniform"]

# Texts are sorted by length inside stretches of this many batches: enough to waste little padding, few enough
# that who meets whom still changes with every epoch.
_STRETCH = 64


@dataclass(frozen=True, eq=False)
class Pool:
    """What a sampling may look at when it lays out an epoch."""

    lengths: NDArray[np.int64]
    """Tokens of each training sample."""
    counts: NDArray[np.int64] | None
    """Choices of each sample, for multiple choice: only equals share a batch."""
    batch_size: int
    rng: np.random.Generator
    order: np.random.Generator
    """Draws the order of the batches, the same for every seed: runs of several seeds side by side then meet texts
    of like length at the same step, and still each its own."""
    signals: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What the recipe's guide told about each sample; empty while there are no dynamics yet."""
    even: bool = False
    """Whether batches are made as equal in size as can be, instead of full ones and a rest: batch norm over a few rows
    is noise, and an update from it can undo an epoch."""


Sampling = Callable[[Pool], list[NDArray[np.int64]]]
"""Pool → the epoch's batches, each an array of positions in the training set."""


def uniform(pool: Pool) -> list[NDArray[np.int64]]:
    """Return batches in which each sample appears once, neighbours in length together, in random order."""
    batches = [batch for rows in _alike(pool) for batch in _bucketed(pool, pool.rng.permutation(rows), pool.batch_size)]
    return [batches[i] for i in pool.order.permutation(len(batches))]


def two_sided(signal: str, *, cycle: bool) -> Sampling:
    """Return a sampling whose batches are one half of side 0 and one half of side 1 of a signal.

    Samples of neither side (-1) are left out. The two sides may differ in number: with `cycle` the shorter one
    starts again, in a new order, until the longer one is through; without, what is left of the longer one
    follows in batches of its own, so that every sample appears once.
    """

    def sampling(pool: Pool) -> list[NDArray[np.int64]]:
        if signal not in pool.signals:
            return uniform(pool)
        side = pool.signals[signal]
        batches: list[NDArray[np.int64]] = []
        for rows in _alike(pool):
            sides = [pool.rng.permutation(rows[side[rows] == code]) for code in (0, 1)]
            short, long = sorted(sides, key=len)
            if cycle and len(short):
                rounds = -(-len(long) // len(short))
                again = [short, *(pool.rng.permutation(short) for _ in range(rounds - 1))]
                short = np.concatenate(again)[: len(long)]
            half = max(1, pool.batch_size // 2)
            paired = len(short)
            first, second = (list(_bucketed(pool, part[:paired], half)) for part in (short, long))
            batches += [np.concatenate(pair) for pair in zip(first, second, strict=True)]
            batches += _bucketed(pool, long[paired:], pool.batch_size)
        return [batches[i] for i in pool.order.permutation(len(batches))]

    return sampling


def _alike(pool: Pool) -> list[NDArray[np.int64]]:
    """Return the samples that may share a batch: all, or those with equally many choices."""
    if pool.counts is None:
        return [np.arange(len(pool.lengths))]
    return [np.flatnonzero(pool.counts == count) for count in np.unique(pool.counts)]


def _bucketed(pool: Pool, shuffled: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Return samples in batches of `size`, sorted by length within stretches of many batches."""
    batches: list[NDArray[np.int64]] = []
    stretch = max(1, len(shuffled)) if pool.even else _STRETCH * size
    for start in range(0, len(shuffled), stretch):
        part = shuffled[start : start + stretch]
        # A stable sort on shuffled samples: equal lengths stay in random order.
        part = part[np.argsort(pool.lengths[part], kind="stable")]
        cuts = -(-len(part) // size) if pool.even else np.arange(size, len(part), size)
        batches += np.array_split(part, cuts)
    return batches
