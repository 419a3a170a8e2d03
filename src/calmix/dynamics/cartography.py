"""Regions of the data map: which samples are easy, ambiguous or hard."""

from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calmix.dynamics.values import Dynamics
from calmix.errors import InputError

__all__ = ["Half", "Region", "absent_classes", "aum_halves", "check_fraction", "easy_and_ambiguous", "regions"]


class Half(IntEnum):
    """The halves of Park & Caragea (2022a), as codes in an int8 array."""

    NONE = -1
    LOW = 0
    HIGH = 1


class Region(IntEnum):
    """The regions of the data map, as codes in an int8 array."""

    NONE = -1
    EASY = 0
    AMBIGUOUS = 1
    HARD = 2


def aum_halves(dynamics: Dynamics) -> NDArray[np.int8]:
    """Return the `Half` of each sample: HIGH where AUM ≥ its median, LOW below, NONE where there is no AUM.

    Park & Caragea (ACL 2022), algorithm 1. Samples that tie with the median all go high.
    """
    known = np.isfinite(dynamics.aum)
    halves = np.full(len(dynamics), Half.NONE, dtype=np.int8)
    if known.any():
        halves[known] = dynamics.aum[known] >= np.median(dynamics.aum[known])
    return halves


def regions(dynamics: Dynamics, *, fraction: float = 1 / 3) -> NDArray[np.int8]:
    """Return the `Region` of each sample: every recorded sample is in exactly one.

    Hosseini & Caragea ask for three regions of a third each and do not say how a sample is assigned when
    more than one would have it. Here: first the `fraction` with the highest variability is ambiguous; of the
    others the `fraction` (of all) with the highest confidence is easy; what remains is hard, which is a third
    at the default and half at a `fraction` of 0.25. Ties: of equal variability the less confident sample is
    the more ambiguous, of equal confidence the less variable is the easier, then the earlier row comes first.
    """
    check_fraction(fraction)
    known = _known(dynamics)
    codes = np.full(len(dynamics), Region.NONE, dtype=np.int8)
    codes[known] = Region.HARD
    size = _size(known, fraction)
    codes[_most_ambiguous(dynamics, known)[:size]] = Region.AMBIGUOUS
    codes[_easiest(dynamics, np.flatnonzero(codes == Region.HARD))[:size]] = Region.EASY
    return codes


def easy_and_ambiguous(
    dynamics: Dynamics, *, fraction: float = 1 / 3, overlap: Literal["ambiguous", "both"] = "ambiguous"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the easiest and of the most ambiguous samples, the `fraction` of all each.

    Park & Caragea (NAACL 2022) take the top 33 % of both and do not say what becomes of a sample in both.
    With `overlap="ambiguous"` it counts as ambiguous, since an easy sample is one of low variability, and the
    next most confident sample takes its place, so that the two hold 66 % of the samples as in the paper's
    tables. With "both" the two lists are ranked on their own and may share samples. Rows are in rising order.
    """
    if overlap == "ambiguous":
        codes = regions(dynamics, fraction=fraction)
        return np.flatnonzero(codes == Region.EASY), np.flatnonzero(codes == Region.AMBIGUOUS)
    if overlap != "both":
        raise ValueError(f"overlap is 'ambiguous' or 'both', not {overlap!r}")
    check_fraction(fraction)
    known = _known(dynamics)
    size = _size(known, fraction)
    return np.sort(_easiest(dynamics, known)[:size]), np.sort(_most_ambiguous(dynamics, known)[:size])


def absent_classes(dynamics: Dynamics, rows: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the classes of the whole map that none of these rows has: a region need not hold every class."""
    present = np.bincount(dynamics.labels[rows][dynamics.labels[rows] >= 0], minlength=dynamics.n_classes)
    wanted = np.bincount(dynamics.labels[dynamics.labels >= 0], minlength=dynamics.n_classes)
    return tuple(int(k) for k in np.flatnonzero((wanted > 0) & (present == 0)))


def check_fraction(fraction: float, name: str = "fraction") -> None:
    """Refuse a share of the data that two regions cannot both have."""
    if not 0 < fraction <= 0.5:
        raise InputError(f"{name} must be above 0 and at most 0.5, not {fraction}")


def _known(dynamics: Dynamics) -> NDArray[np.int64]:
    return np.flatnonzero(np.isfinite(dynamics.confidence) & np.isfinite(dynamics.variability))


def _size(known: NDArray[np.int64], fraction: float) -> int:
    return int(len(known) * fraction + 0.5)


def _most_ambiguous(dynamics: Dynamics, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.lexsort((rows, dynamics.confidence[rows], -dynamics.variability[rows]))]


def _easiest(dynamics: Dynamics, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.lexsort((rows, dynamics.variability[rows], -dynamics.confidence[rows]))]
