"""The reliability diagram: how often predictions of a given confidence are right."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calmix.calibration import ece, reliability
from calmix.report.figures import STYLES, literal, look, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ReliabilityCurve", "draw_reliability", "prepare_reliability", "wilson"]

# 95 % of a normal distribution.
_Z = 1.96
# Fewer rows in a bin are all right or all wrong by chance: drawn pale, and not joined to the rest.
_FEW = 10


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """The bins that hold anything: mean confidence, accuracy with its 95 % interval, and rows; and the ECE."""

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    rows: NDArray[np.int64]
    bin: NDArray[np.int64]
    """Which of the bins each is, counted from 0."""
    bins: int
    ece: float


def prepare_reliability(probs: NDArray[np.float64], labels: NDArray[np.int64], *, bins: int = 15) -> ReliabilityCurve:
    """Return the curve of labelled predictions; intervals after Wilson, which hold for few rows too."""
    found = reliability(probs, labels, bins=bins)
    full = np.flatnonzero(np.asarray(found.counts) > 0)
    rows = np.asarray(found.counts)[full]
    right = np.asarray(found.accuracy)[full]
    limits = np.array([wilson(share * n, n) for share, n in zip(right, rows, strict=True)]).reshape(-1, 2)
    return ReliabilityCurve(
        confidence=np.asarray(found.confidence)[full],
        accuracy=right,
        low=limits[:, 0],
        high=limits[:, 1],
        rows=rows,
        bin=full,
        bins=bins,
        ece=ece(probs, labels, bins=bins),
    )


def wilson(right: float, rows: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    share = right / rows
    middle = (share + _Z**2 / (2 * rows)) / (1 + _Z**2 / rows)
    half = _Z / (1 + _Z**2 / rows) * np.sqrt(share * (1 - share) / rows + _Z**2 / (4 * rows**2))
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def draw_reliability(panels: Mapping[str, Mapping[str, ReliabilityCurve]]) -> "Figure":
    """Return a figure with one diagram per panel, each with its named curves."""
    with look():
        lines = 1 + max(map(len, panels.values()), default=0)
        figure = new_figure(4.6 * len(panels), 4.1 + 0.22 * lines)
        for place, (title, curves) in enumerate(panels.items(), start=1):
            _panel(figure.add_subplot(1, len(panels), place), title, curves)
    return figure


def _panel(axes: "Axes", title: str, curves: Mapping[str, ReliabilityCurve]) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect calibration")
    for (name, curve), (colour, marker) in zip(curves.items(), cycle(STYLES), strict=False):
        joined = curve.rows >= _FEW
        x, y = curve.confidence[joined], curve.accuracy[joined]
        axes.fill_between(x, curve.low[joined], curve.high[joined], color=colour, alpha=0.15, linewidth=0)
        label = f"{literal(name)} (ECE {curve.ece:.1%})"
        # Points at 0 and 1 are on the frame: whole, and above it. A layout fails at an unclipped line without points.
        whole: dict[str, Any] = {"clip_on": False, "zorder": 3, "in_layout": False}
        whole |= {"color": colour, "marker": marker, "markersize": 5}
        axes.plot(x, y, label=label, **whole)
        few, rare = curve.confidence[~joined], curve.accuracy[~joined]
        axes.plot(few, rare, linestyle="none", alpha=0.3, **whole)
    axes.set_title(literal(title), loc="left")
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    # Below: curves may be in any corner.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
