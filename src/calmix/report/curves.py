"""Training curves: loss, accuracy and calibration error by epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calmix.report.figures import STYLES, look, new_figure
from calmix.training.learning_notes import BEFORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BEFORE_TITLE", "TrainingCurves", "draw_curves", "fine_tuned", "prepare_curves"]

BEFORE_TITLE = "before fine-tuning"
"""What epoch 0 is called: the network as it was loaded, with a head fitted to it."""

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


def fine_tuned(history: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a log has an epoch of training, and not only what was before it."""
    return any(int(entry["epoch"]) > BEFORE for entry in history)


def prepare_curves(history: Sequence[Mapping[str, Any]], best: int | None = None) -> TrainingCurves:
    """Return the curves in a run's log; one without an epoch of training has none."""
    if not fine_tuned(history):
        return TrainingCurves((), {}, best)
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
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    # What was before is another model, its head at full size: a point of its own.
    first = int(curves.epochs[:1] == (BEFORE,))
    with look():
        figure = new_figure(4.0 * max(1, len(curves.panels)), 3.6)
        for place, (title, series) in enumerate(curves.panels.items(), start=1):
            axes = figure.add_subplot(1, len(curves.panels), place)
            for (name, values), (colour, marker) in zip(series.items(), STYLES, strict=False):
                shown = [float("nan") if v is None else v for v in values]
                alike: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
                axes.plot(curves.epochs[first:], shown[first:], label=name, **alike)
                axes.plot(curves.epochs[:first], shown[:first], **alike)
            if curves.best is not None:
                axes.axvline(curves.best, color="0.6", linestyle="--", linewidth=1, label="kept")
            axes.set_title(title, loc="left")
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if first:
                axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: "before" if at == BEFORE else f"{at:g}"))
            axes.legend(frameon=False, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
