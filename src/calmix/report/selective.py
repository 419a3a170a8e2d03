"""The risk–coverage curve: what is gained by answering only when sure."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calmix.calibration import risk_coverage
from calmix.report.figures import STYLES, literal, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RiskCurve", "draw_risk_coverage", "prepare_risk_coverage"]

_MOST = 400


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The error rate among the most confident share of the rows, and the confidence that lets them in."""

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    threshold: NDArray[np.float64]
    area: float
    """Under the whole curve (AURC), however many points are kept."""


def prepare_risk_coverage(probs: NDArray[np.float64], labels: NDArray[np.int64], *, most: int = _MOST) -> RiskCurve:
    """Return the curve; of more than `most` points, evenly spaced ones and the last."""
    found = risk_coverage(probs, labels)
    coverage, risk, threshold = (np.asarray(v) for v in (found.coverage, found.risk, found.threshold))
    rows = np.unique(np.linspace(0, len(risk) - 1, min(most, len(risk))).round().astype(np.int64))
    return RiskCurve(coverage[rows], risk[rows], threshold[rows], float(risk.mean()))


def draw_risk_coverage(panels: Mapping[str, Mapping[str, RiskCurve]]) -> "Figure":
    """Return a figure with one diagram per panel, each with its named curves."""
    with look():
        figure = new_figure(6.0 * len(panels), 4.4)
        for place, (title, curves) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(1, len(panels), place)
            for (name, curve), (colour, _) in zip(curves.items(), cycle(STYLES), strict=False):
                label = f"{literal(name)} (area {curve.area:.3f})"
                axes.plot(curve.coverage, curve.risk, color=colour, label=label)
            axes.set_title(literal(title), loc="left")
            axes.set_xlabel("coverage: share of the rows answered, the most confident first")
            axes.set_ylabel("risk: share of them that is wrong")
            axes.set_xlim(0, 1)
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left", frameon=False, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
