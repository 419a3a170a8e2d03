"""Threshold samples: how low the AUM of a sample falls whose label is known to be wrong."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calmix.dynamics.values import Dynamics

__all__ = ["Relabelling", "aum_filter", "aum_filter_pair", "threshold_pair", "threshold_samples"]


@dataclass(frozen=True, eq=False)
class Relabelling:
    """Samples that get a wrong label on purpose."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def applied(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return a copy of all labels with these replaced."""
        changed = np.array(labels, dtype=np.int64)
        changed[self.rows] = self.labels
        return changed


def threshold_samples(
    labels: ArrayLike,
    n_classes: int | ArrayLike,
    rows: ArrayLike,
    rng: np.random.Generator,
    *,
    wording: Literal["balanced", "literal"] = "balanced",
) -> Relabelling:
    """Return the threshold samples of a region: which of its rows to relabel, and to what.

    "balanced", after Pleiss et al. (2020): n / (c + 1) of the n rows in all, as evenly over the classes as
    they allow, become a class that does not exist: label `n_classes`, so that the network needs
    `n_classes + 1` outputs. At most half of a class is taken, so that it does not vanish from the training set.

    "literal", Park & Caragea (NAACL 2022) as worded: n / (c + 1) rows of each class, most of the region, get any
    label but their own, the non-existent one included.

    For multiple choice `n_classes` are the choices of each sample, and the fake class is one more choice. Samples
    with equally many choices are a region of their own; their classes are the places of the right choice.
    """
    if wording not in ("balanced", "literal"):
        raise ValueError(f"wording is 'balanced' or 'literal', not {wording!r}")
    found = []
    for size, part in _by_size(n_classes, rows):
        gold, members, by_class = _grouped(labels, size, part, rng)
        if wording == "literal":
            per_class = len(members) // (size + 1)
            chosen = np.sort(np.concatenate([some[:per_class] for some in by_class]))
            # A draw from the labels that are not one's own: skip over it.
            drawn = rng.integers(size, size=len(chosen))
            found.append(Relabelling(chosen, drawn + (drawn >= gold[chosen])))
        else:
            found.append(_fake(_shares(members, by_class, size, rng), by_class, 0, size))
    return _joined(found)


def threshold_pair(
    labels: ArrayLike, n_classes: int | ArrayLike, rows: ArrayLike, rng: np.random.Generator
) -> tuple[Relabelling, Relabelling]:
    """Return two disjoint, balanced sets of threshold samples, for two runs that together judge every sample."""
    first, second = [], []
    for size, part in _by_size(n_classes, rows):
        _, members, by_class = _grouped(labels, size, part, rng)
        shares = _shares(members, by_class, size, rng)
        first.append(_fake(shares, by_class, 0, size))
        second.append(_fake(shares, by_class, 1, size))
    return _joined(first), _joined(second)


def aum_filter(dynamics: Dynamics, thresholds: Relabelling | ArrayLike, *, k: float = 80) -> NDArray[np.int64]:
    """Return the rows to keep: real samples whose AUM is not below the k-th percentile of the threshold samples'.

    `dynamics` are those of the run in which the threshold samples had their wrong labels. Park & Caragea
    (NAACL 2022) use k = 80 for SNLI and QQP and 50 for SWAG, and filter the easy region only. Threshold
    samples themselves, and samples without an AUM, are not judged and not kept: see `aum_filter_pair`.
    """
    fake = _rows(thresholds)
    judged = np.isfinite(dynamics.aum)
    judged[fake] = False
    return np.flatnonzero(judged & (dynamics.aum >= _cut(dynamics, fake, k)))


def aum_filter_pair(
    first: Dynamics,
    first_thresholds: Relabelling | ArrayLike,
    second: Dynamics,
    second_thresholds: Relabelling | ArrayLike,
    *,
    k: float = 80,
) -> NDArray[np.int64]:
    """Return the rows to keep after two runs with disjoint threshold samples, in which every sample is judged.

    The first run judges all samples but its own threshold samples; these are judged by the second
    (Pleiss et al. 2020), each time against the threshold of the same run.
    """
    if first.ids != second.ids:
        raise ValueError("the two runs are not of the same samples in the same order")
    one = _rows(first_thresholds)
    if np.intersect1d(one, _rows(second_thresholds)).size:
        raise ValueError("the two runs share threshold samples, which neither can judge: see threshold_pair")
    again = np.intersect1d(one, aum_filter(second, second_thresholds, k=k))
    return np.union1d(aum_filter(first, first_thresholds, k=k), again)


def _rows(thresholds: Relabelling | ArrayLike) -> NDArray[np.int64]:
    rows = thresholds.rows if isinstance(thresholds, Relabelling) else thresholds
    return np.asarray(rows, dtype=np.int64)


def _cut(dynamics: Dynamics, fake: NDArray[np.int64], k: float) -> float:
    aum = dynamics.aum[fake]
    if not np.isfinite(aum).any():
        raise ValueError("no threshold sample has an AUM: train on them with their new labels first")
    return float(np.percentile(aum[np.isfinite(aum)], k))


def _by_size(n_classes: int | ArrayLike, rows: ArrayLike) -> list[tuple[int, NDArray[np.int64]]]:
    """The rows with equally many classes (or choices), by their number."""
    members = np.asarray(rows, dtype=np.int64)
    if isinstance(n_classes, int):
        return [(n_classes, members)]
    sizes = np.asarray(n_classes, dtype=np.int64)[members]
    return [(int(size), members[sizes == size]) for size in np.unique(sizes)]


def _joined(parts: list[Relabelling]) -> Relabelling:
    none = Relabelling(np.empty(0, np.int64), np.empty(0, np.int64))
    rows = np.concatenate([part.rows for part in (none, *parts)])
    labels = np.concatenate([part.labels for part in (none, *parts)])
    order = np.argsort(rows)
    return Relabelling(rows[order], labels[order])


def _grouped(
    labels: ArrayLike, n_classes: int, rows: ArrayLike, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """The labels, the rows, and the rows of each class in random order."""
    gold, members = np.asarray(labels, dtype=np.int64), np.asarray(rows, dtype=np.int64)
    if members.size and not (gold[members].min() >= 0 and gold[members].max() < n_classes):
        raise ValueError(f"the rows have labels outside 0 … {n_classes - 1}")
    return gold, members, [rng.permutation(members[gold[members] == k]) for k in range(n_classes)]


def _shares(
    members: NDArray[np.int64], by_class: list[NDArray[np.int64]], n_classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each class: as even as can be, at most half of a class, n / (c + 1) in all if there are enough."""
    room = np.array([len(part) // 2 for part in by_class])
    total = min(len(members) // (n_classes + 1), int(room.sum()))
    order = rng.permutation(n_classes)  # who gets the remainder
    shares = np.zeros(n_classes, dtype=np.int64)
    # The classes with the least room first: what they cannot take is spread over the others.
    for done, k in enumerate(order[np.argsort(room[order], kind="stable")]):
        shares[k] = min(room[k], -(-(total - shares.sum()) // (n_classes - done)))
    return shares


def _fake(shares: NDArray[np.int64], by_class: list[NDArray[np.int64]], turn: int, n_classes: int) -> Relabelling:
    rows = [part[turn * share : (turn + 1) * share] for share, part in zip(shares, by_class, strict=True)]
    chosen = np.sort(np.concatenate(rows))
    return Relabelling(chosen, np.full(len(chosen), n_classes, dtype=np.int64))
