"""The reliability diagram: how often predictions of a given confidence are right."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from numpy.typing import NDArray

from calmix.calibration import ece, reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ReliabilityCurve", "draw_reliability", "prepare_reliability"]

# Told apart in grey as well: each has a marker of its own.
_STYLES = (("#7b4ea3", "s"), ("#2a9d8f", "o"), ("#e9a23b", "^"), ("#c1121f", "D"), ("#457b9d", "v"))
# 95 % of a normal distribution.
_Z = 1.96


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """The bins that hold anything: mean confidence, accuracy with its 95 % interval, and rows; and the ECE."""

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    rows: NDArray[np.int64]
    ece: float


def prepare_reliability(probs: NDArray[np.float64], labels: NDArray[np.int64], *, bins: int = 15) -> ReliabilityCurve:
    """Return the curve of labelled predictions; intervals after Wilson, which hold for few rows too."""
    found = reliability(probs, labels, bins=bins)
    full = np.asarray(found.counts) > 0
    n = np.asarray(found.counts)[full].astype(np.float64)
    right = np.asarray(found.accuracy)[full]
    middle = (right + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * np.sqrt(right * (1 - right) / n + _Z**2 / (4 * n**2))
    return ReliabilityCurve(
        confidence=np.asarray(found.confidence)[full],
        accuracy=right,
        low=np.maximum(0.0, middle - half),
        high=np.minimum(1.0, middle + half),
        rows=n.astype(np.int64),
        ece=ece(probs, labels, bins=bins),
    )


def draw_reliability(panels: Mapping[str, Mapping[str, ReliabilityCurve]]) -> "Figure":
    """Return a figure with one diagram per panel, each with its named curves."""
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "calmix", "font.size": 10}):
        figure = Figure(figsize=(4.6 * len(panels), 4.4), layout="constrained")
        for place, (title, curves) in enumerate(panels.items(), start=1):
            _panel(figure.add_subplot(1, len(panels), place), title, curves)
    return figure


def _panel(axes: "Axes", title: str, curves: Mapping[str, ReliabilityCurve]) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="as sure as right")
    for (name, curve), (colour, marker) in zip(curves.items(), _STYLES, strict=False):
        axes.fill_between(curve.confidence, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        label = f"{name} (ECE {curve.ece:.1%})"
        axes.plot(curve.confidence, curve.accuracy, color=colour, marker=marker, markersize=5, label=label)
    axes.set_title(title, loc="left")
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
