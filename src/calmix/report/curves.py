"""Training curves: loss, accuracy and calibration error by epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calmix.report.figures import STYLES, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TrainingCurves", "draw_curves", "prepare_curves"]

# Title → series: a name and where its value is in an epoch of the log.
_PANELS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "loss": (("training loss", ("loss",)), ("dev NLL", ("dev", "nll")), ("dev NLL, scaled", ("dev", "nll-ts"))),
    "accuracy": (("dev accuracy", ("dev", "accuracy")),),
    "calibration error (ECE)": (("dev ECE", ("dev", "ece")),),
}


@dataclass(frozen=True)
class TrainingCurves:
    """Values by epoch; a panel without any is left out, and so is a series."""

    epochs: tuple[int, ...]
    panels: dict[str, dict[str, tuple[float | None, ...]]]
    best: int | None
    """The epoch that was kept."""


def prepare_curves(history: Sequence[Mapping[str, Any]], best: int | None = None) -> TrainingCurves:
    """Return the curves in a run's log."""
    panels: dict[str, dict[str, tuple[float | None, ...]]] = {}
    for title, series in _PANELS.items():
        found = {name: tuple(_at(epoch, path) for epoch in history) for name, path in series}
        found = {name: values for name, values in found.items() if any(v is not None for v in values)}
        if found:
            panels[title] = found
    return TrainingCurves(tuple(int(epoch["epoch"]) for epoch in history), panels, best)


def _at(epoch: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = epoch
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def draw_curves(curves: TrainingCurves) -> "Figure":
    """Return a figure with a panel each for loss, accuracy and calibration error."""
    from matplotlib.ticker import MaxNLocator

    with look():
        figure = new_figure(4.0 * max(1, len(curves.panels)), 3.6)
        for place, (title, series) in enumerate(curves.panels.items(), start=1):
            axes = figure.add_subplot(1, len(curves.panels), place)
            for (name, values), (colour, marker) in zip(series.items(), STYLES, strict=False):
                shown = [float("nan") if v is None else v for v in values]
                axes.plot(curves.epochs, shown, color=colour, marker=marker, markersize=4, label=name)
            if curves.best is not None:
                axes.axvline(curves.best, color="0.6", linestyle="--", linewidth=1, label="kept")
            axes.set_title(title, loc="left")
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.legend(frameon=False, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
