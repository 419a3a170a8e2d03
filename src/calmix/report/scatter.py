"""Confidence against accuracy as a scatter of equally many rows each (Thulasidasan et al. 2019, figure 2a–d)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.calibration.confidence import confidences
from calmix.report.figures import STYLES, literal, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_scatter", "prepare_scatter"]


def prepare_scatter(
    judged: Iterable[tuple[str, str, NDArray[np.float64], NDArray[np.int64]]], *, points: int = 50
) -> pa.Table:
    """Return `run`, `data`, `confidence`, `accuracy` and `rows` of groups of rows of like confidence.

    Args:
        judged: run, data set, probabilities and labels of each panel.
        points: groups of each, as equally large as can be; never of fewer than ten rows.
    """
    rows = []
    for run, data, probs, labels in judged:
        sure, right = (np.asarray(part, dtype=np.float64) for part in confidences(probs, labels))
        order = np.argsort(sure, kind="stable")
        for group in np.array_split(order, max(1, min(points, len(order) // 10))):
            place = {"run": run, "data": data, "confidence": float(sure[group].mean())}
            rows.append({**place, "accuracy": float(right[group].mean()), "rows": len(group)})
    return pa.Table.from_pylist(rows)


def draw_scatter(table: pa.Table) -> "Figure":
    """Return a figure with a panel for each run and data set; below the diagonal a model is too sure."""
    rows = table.to_pylist()
    panels = list(dict.fromkeys((row["run"], row["data"]) for row in rows))
    with look():
        figure = new_figure(4.2 * len(panels), 4.2)
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(1, len(panels), place)
            here = [row for row in rows if (row["run"], row["data"]) == panel]
            axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
            colour, marker = STYLES[panels.index(panel) % len(STYLES)]
            axes.scatter(
                [row["confidence"] for row in here],
                [row["accuracy"] for row in here],
                color=colour, marker=marker, s=22, alpha=0.7, linewidths=0, clip_on=False,
            )  # fmt: skip
            axes.set_title(literal(" · ".join(panel)), loc="left")
            axes.set_xlabel("confidence")
            axes.set_ylabel("accuracy")
            axes.set_xlim(0, 1.02)
            axes.set_ylim(0, 1.02)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
