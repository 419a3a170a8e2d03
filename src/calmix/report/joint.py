"""Confidence and accuracy together, epoch by epoch (Thulasidasan et al. 2019, figure 1)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.errors import InputError
from calmix.report.curves import BEFORE_TITLE
from calmix.report.figures import literal, look, new_figure
from calmix.training.learning_notes import BEFORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["density", "draw_joint", "prepare_joint"]

_SHOWN = 5
_GRID = 80


def prepare_joint(
    histories: Mapping[str, Sequence[Mapping[str, Any]]], *, epochs: Sequence[int] | None = None
) -> pa.Table:
    """Return `run`, `epoch`, `confidence` and `accuracy` of batches of dev rows, from the logs of runs.

    Epoch 0 is before fine-tuning.

    Args:
        histories: run → its log.
        epochs: those to keep; five, evenly spread, if not given.
    """
    rows = []
    for run, history in histories.items():
        there = {int(entry["epoch"]): entry["joint"] for entry in history if entry.get("joint")}
        if not there:
            raise InputError(f"{run}: its log has no confidence and accuracy by batch: train it again with dev data")
        chosen = list(epochs or sorted({sorted(there)[i] for i in np.linspace(0, len(there) - 1, _SHOWN).astype(int)}))
        if missing := [epoch for epoch in chosen if epoch not in there]:
            raise InputError(f"{run}: has no epoch {missing[0]} (there are {min(there)} to {max(there)})")
        rows += [
            {"run": run, "epoch": epoch, "confidence": sure, "accuracy": right}
            for epoch in chosen
            for sure, right in there[epoch]
        ]
    return pa.Table.from_pylist(rows)


def density(x: NDArray[np.float64], y: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the density of points on grid × grid (rows are y): normal kernels, Silverman's widths."""

    def kernels(values: NDArray[np.float64]) -> NDArray[np.float64]:
        width = max(0.01, float(values.std()) * len(values) ** (-1 / 6))
        scaled = (grid[:, None] - values) / width
        return np.asarray(np.exp(-0.5 * scaled**2) / (width * np.sqrt(2 * np.pi)))

    return np.asarray(kernels(y) @ kernels(x).T / len(x))


def draw_joint(table: pa.Table) -> "Figure":
    """Return a figure with a row of panels for each run, a panel for each epoch; right of the diagonal: too sure."""
    run, epoch = (np.array(table[name].to_pylist(), dtype=object) for name in ("run", "epoch"))
    sure, right = (np.asarray(table[name], dtype=np.float64) for name in ("confidence", "accuracy"))
    runs = list(dict.fromkeys(run))
    panels = {name: list(dict.fromkeys(epoch[run == name])) for name in runs}
    wide = max(map(len, panels.values()))
    low = max(0.0, min(sure.min(), right.min()) - 0.05)
    grid = np.linspace(low, 1.0, _GRID)
    with look():
        figure = new_figure(2.6 * wide, 2.7 * len(runs))
        for row, name in enumerate(runs):
            for column, at in enumerate(panels[name]):
                axes = figure.add_subplot(len(runs), wide, row * wide + column + 1)
                here = (run == name) & (epoch == at)
                axes.contourf(grid, grid, density(sure[here], right[here], grid), levels=12, cmap="Purples")
                axes.plot([low, 1], [low, 1], color="0.4", linestyle="--", linewidth=1)
                axes.set_title(
                    f"{literal(name)}, {BEFORE_TITLE if at == BEFORE else f'epoch {at}'}", loc="left", fontsize=9
                )
                axes.set_xlabel("confidence")
                axes.set_ylabel("accuracy" if column == 0 else "")
    return figure
