"""Which samples share a batch: one epoch's batches, made on the host."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pool", "Sampling", "uniform"]

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


Sampling = Callable[[Pool], list[NDArray[np.int64]]]
"""Pool → the epoch's batches, each an array of positions in the training set."""


def uniform(pool: Pool) -> list[NDArray[np.int64]]:
    """Return batches in which each sample appears once, neighbours in length together, in random order."""
    counts = np.zeros(len(pool.lengths), dtype=np.int64) if pool.counts is None else pool.counts
    batches: list[NDArray[np.int64]] = []
    for count in np.unique(counts):
        shuffled = pool.rng.permutation(np.flatnonzero(counts == count))
        stretch = _STRETCH * pool.batch_size
        for start in range(0, len(shuffled), stretch):
            part = shuffled[start : start + stretch]
            # A stable sort on shuffled samples: equal lengths stay in random order.
            part = part[np.argsort(pool.lengths[part], kind="stable")]
            batches += [part[i : i + pool.batch_size] for i in range(0, len(part), pool.batch_size)]
    return [batches[i] for i in pool.rng.permutation(len(batches))]
