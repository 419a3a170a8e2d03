"""The data map as a picture: confidence over variability, one point per training sample."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calmix.dynamics import Dynamics, Region, label_issues, regions
from calmix.report.figures import look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DataMap", "Limits", "draw_datamap", "fitting_limits", "prepare_datamap"]

# Enough points to see the shape; more only make the file large.
_MOST = 20_000
# A map that fills so much of the scale is shown on all of it, as people know it.
_MOST_OF_IT = 0.6
# Axes are never narrower than these parts of the typical confidence, or than these: closer up there is only noise.
_CLOSEST, _LEAST = (1 / 10, 1 / 4), (0.002, 0.01)
# Told apart in grey and by colour-blind eyes as well.
_STYLES = {
    Region.EASY: ("easy", "#2a9d8f", "o"),
    Region.AMBIGUOUS: ("ambiguous", "#e9a23b", "^"),
    Region.HARD: ("hard", "#7b4ea3", "s"),
}


@dataclass(frozen=True, eq=False)
class DataMap:
    """What is drawn: where each sample is, its region, and whether its label looks wrong."""

    variability: NDArray[np.float64]
    confidence: NDArray[np.float64]
    region: NDArray[np.int8]
    suspect: NDArray[np.bool_]
    total: int
    """How many samples were observed; fewer may be drawn. The next two count all of them as well."""
    sizes: dict[Region, int]
    suspects: int


@dataclass(frozen=True)
class Limits:
    """What the axes of a map show: variability from 0 to `right`, confidence from `bottom` to `top`."""

    right: float
    bottom: float
    top: float


def fitting_limits(variability: NDArray[np.float64], confidence: NDArray[np.float64]) -> Limits:
    """Return the axes that fit the points of a map, in round numbers, and exaggerate no noise.

    Confidence is shown from 0 to 1 where the points fill most of that, and from 0 wherever the lowest is far below the
    highest.
    """
    if not len(confidence):
        return Limits(0.05, 0.0, 1.0)
    typical = float(np.median(confidence))
    across, upwards = (max(least, part * typical) for least, part in zip(_LEAST, _CLOSEST, strict=True))
    right = _rounded_up(max(across, float(variability.max())))
    low, high = float(confidence.min()), float(confidence.max())
    if high - low >= _MOST_OF_IT:
        return Limits(right, 0.0, 1.0)
    if low < high / 2:
        return Limits(right, 0.0, min(1.0, _rounded_up(max(high, upwards))))
    spare = max(0.0, upwards - (high - low)) / 2
    step = _step(max(high - low, upwards))
    bottom, top = step * np.floor((low - spare) / step), step * np.ceil((high + spare) / step)
    return Limits(right, float(max(0.0, bottom)), float(min(1.0, top)))


def _rounded_up(value: float) -> float:
    step = _step(value)
    return float(step * np.ceil(value / step - 1e-9))


def _step(width: float) -> float:
    """Return a round number of which five to ten make a width."""
    power = 10.0 ** np.floor(np.log10(width / 5))
    return float(next(power * part for part in (1, 2, 5, 10) if power * part * 10 >= width))


def prepare_datamap(dynamics: Dynamics, *, most: int = _MOST, seed: int = 0) -> DataMap:
    """Return the points of the map; of more than `most`, a random sample that keeps every suspect it can."""
    seen = np.flatnonzero(dynamics.observations > 0)
    suspect = label_issues(dynamics).flagged
    rows = seen
    if len(seen) > most:
        order = np.random.default_rng(seed).permutation(seen)
        rows = np.sort(order[np.argsort(~suspect[order], kind="stable")][:most])
    codes = regions(dynamics)
    return DataMap(
        variability=dynamics.variability[rows],
        confidence=dynamics.confidence[rows],
        region=codes[rows],
        suspect=suspect[rows],
        total=len(seen),
        sizes={region: int((codes == region).sum()) for region in _STYLES},
        suspects=int(suspect.sum()),
    )


def draw_datamap(points: DataMap) -> "Figure":
    """Return the figure of a data map."""
    with look():
        figure = new_figure(7.2, 5.2)
        axes = figure.add_subplot()
        size = float(np.clip(4000 / max(1, len(points.region)), 4, 28))
        for code, (name, colour, marker) in _STYLES.items():
            here = points.region == code
            axes.scatter(
                points.variability[here],
                points.confidence[here],
                s=size,
                c=colour,
                marker=marker,
                alpha=0.6,
                linewidths=0,
                rasterized=True,
                label=f"{name} ({points.sizes[code]:,})",
            )
        wrong = points.suspect
        if wrong.any():
            axes.scatter(
                points.variability[wrong],
                points.confidence[wrong],
                s=2.2 * size,
                facecolors="none",
                edgecolors="#c1121f",
                linewidths=0.9,
                rasterized=True,
                label=f"label looks wrong ({points.suspects:,})",
            )
        axes.set_xlabel("variability: how much the probability of the label changed over the epochs")
        axes.set_ylabel("confidence: its mean")
        limits = fitting_limits(points.variability, points.confidence)
        spare = 0.02 * (limits.top - limits.bottom)  # points on the frame are whole
        axes.set_xlim(0, limits.right)
        axes.set_ylim(limits.bottom, limits.top + spare)
        shown = (
            f"{len(points.region):,} of {points.total:,}" if len(points.region) < points.total else f"{points.total:,}"
        )
        axes.set_title(f"Data map of {shown} training samples", loc="left")
        axes.legend(loc="lower right", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
