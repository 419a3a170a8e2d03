"""Methods of a study side by side: calibration error over accuracy, one point per method and task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calmix.report.figures import literal, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MethodPoint", "draw_methods", "prepare_methods"]

# Told apart in grey as well: each has a marker of its own.
_MARKERS = "osD^v<>pPXh*"


@dataclass(frozen=True)
class MethodPoint:
    """A method on one data set: means over seeds, before or after temperature scaling."""

    place: str
    """The task, or task → other domain, with the model where there are several."""
    method: str
    scaled: bool
    accuracy: float
    ece: float
    spread: float
    """Standard deviation of the ECE over seeds; NaN for one."""


def prepare_methods(rows: Sequence[Mapping[str, Any]]) -> list[MethodPoint]:
    """Return a point for each method, data set and scaling, from a study's rows, in their order."""
    several = len({(row["model"], row["setting"]) for row in rows}) > 1
    found: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    for row in rows:
        place = row["task"] if row["data"] == "test" else f"{row['task']} → {row['data'].removeprefix('ood-')}"
        if several:
            place = " · ".join(part for part in (place, str(row["model"]).rsplit("/", 1)[-1], row["setting"]) if part)
        found.setdefault((place, row["method"], row["scaled"]), []).append((row["accuracy"], row["ece"]))
    points = []
    for (place, method, scaled), values in found.items():
        accuracy, ece = np.array(values, dtype=np.float64).T
        spread = float(ece.std(ddof=1)) if len(ece) > 1 else float("nan")
        points.append(MethodPoint(place, method, scaled, float(accuracy.mean()), float(ece.mean()), spread))
    return points


def draw_methods(points: Sequence[MethodPoint], *, title: str = "") -> "Figure":
    """Return a figure with a panel for each data set: hollow before temperature scaling, filled after."""
    places = list(dict.fromkeys(point.place for point in points))
    methods = list(dict.fromkeys(point.method for point in points))
    wide = min(3, len(places))
    high = -(-len(places) // wide)
    with look():
        figure = new_figure(4.2 * wide, 3.6 * high + 0.25 * len(methods))
        for number, place in enumerate(places, start=1):
            axes = figure.add_subplot(high, wide, number)
            for point in points:
                if point.place != place:
                    continue
                k = methods.index(point.method)
                colour = f"C{k % 10}"
                axes.errorbar(
                    100 * point.accuracy,
                    100 * point.ece,
                    yerr=None if np.isnan(point.spread) else 100 * point.spread,
                    color=colour,
                    marker=_MARKERS[k % len(_MARKERS)],
                    markerfacecolor=colour if point.scaled else "none",
                    markersize=6,
                    linewidth=0,
                    elinewidth=0.8,
                    label=literal(point.method) if number == 1 and not point.scaled else None,
                )
            axes.set_title(literal(place), loc="left")
            axes.set_xlabel("accuracy (%)")
            axes.set_ylabel("ECE (%)")
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=min(4, len(methods)), frameon=False)
        about = "hollow: as trained; filled: after temperature scaling"
        figure.suptitle(f"{title}, {about}" if title else about, fontsize=9)
    return figure
