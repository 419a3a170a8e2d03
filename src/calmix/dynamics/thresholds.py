"""Threshold samples: how low the AUM of a sample falls whose label is known to be wrong."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calmix.dynamics.values import Dynamics

__all__ = [
    "WORDINGS",
    "Relabelling",
    "ThresholdRun",
    "Wording",
    "aum_filter",
    "aum_filter_pair",
    "threshold_pair",
    "threshold_runs",
    "threshold_samples",
]

Wording = Literal["balanced", "literal"]
"""Which samples become threshold samples: see `threshold_samples`."""
WORDINGS: tuple[Wording, ...] = get_args(Wording)


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


@dataclass(frozen=True, eq=False)
class ThresholdRun:
    """A training run with threshold samples, and the samples that it judges, none of which is one of them."""

    thresholds: Relabelling
    judged: NDArray[np.int64]


def threshold_samples(
    labels: ArrayLike,
    n_classes: int | ArrayLike,
    rows: ArrayLike,
    rng: np.random.Generator,
    *,
    wording: Wording = "balanced",
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
    _check_wording(wording)
    found = []
    for size, part in _by_size(n_classes, rows):
        gold, members, by_class = _grouped(labels, size, part, rng)
        if wording == "literal":
            per_class = len(members) // (size + 1)
            chosen = np.sort(np.concatenate([some[:per_class] for some in by_class]))
            found.append(_any_other(chosen, gold, size, rng))
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


def threshold_runs(
    labels: ArrayLike,
    n_classes: int | ArrayLike,
    rows: ArrayLike,
    rng: np.random.Generator,
    *,
    wording: Wording = "balanced",
) -> list[ThresholdRun]:
    """Return the runs that together judge every sample of a region once, each time with its own label.

    "balanced" takes two runs (`threshold_pair`). "literal" relabels most of the region, so that it takes c + 1: in
    each, another (c + 1)-th of every class keeps its labels and is judged, and n / (c + 1) of the rest of each class
    get any other label.
    """
    _check_wording(wording)
    if wording == "balanced":
        first, second = threshold_pair(labels, n_classes, rows, rng)
        others = np.setdiff1d(np.asarray(rows, dtype=np.int64), first.rows)
        return [ThresholdRun(first, others), ThresholdRun(second, first.rows)]
    parts = _by_size(n_classes, rows)
    turns = max((size for size, _ in parts), default=0) + 1
    fakes: list[list[Relabelling]] = [[] for _ in range(turns)]
    judged: list[list[NDArray[np.int64]]] = [[] for _ in range(turns)]
    for size, part in parts:
        gold, members, by_class = _grouped(labels, size, part, rng)
        shares = [np.array_split(some, size + 1) for some in by_class]
        for turn in range(turns):
            # Samples with fewer choices than others have had their turn: they only add threshold samples.
            own = turn % (size + 1)
            rest = [np.concatenate(share[own + 1 :] + share[:own]) for share in shares]
            chosen = np.sort(np.concatenate([some[: len(members) // (size + 1)] for some in rest]))
            fakes[turn].append(_any_other(chosen, gold, size, rng))
            judged[turn] += [share[turn] for share in shares if turn <= size]
    return [
        ThresholdRun(_joined(fake), np.sort(np.concatenate(seen)))
        for fake, seen in zip(fakes, judged, strict=True)
        if seen
    ]


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


def _check_wording(wording: str) -> None:
    if wording not in WORDINGS:
        raise ValueError(f"wording is {' or '.join(map(repr, WORDINGS))}, not {wording!r}")


def _any_other(
    rows: NDArray[np.int64], gold: NDArray[np.int64], n_classes: int, rng: np.random.Generator
) -> Relabelling:
    """Give the rows any label but their own, the fake one included."""
    drawn = rng.integers(n_classes, size=len(rows))
    # A draw from the labels that are not one's own: skip over it.
    return Relabelling(rows, drawn + (drawn >= gold[rows]))


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
