"""Training loss and calibration of several runs over their epochs (Thulasidasan et al. 2019, figure 7)."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from calmix.errors import InputError
from calmix.report.curves import fine_tuned
from calmix.report.figures import STYLES, literal, look, new_figure
from calmix.training.learning_notes import BEFORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_extended", "prepare_extended"]

_PANELS = {"loss": "training loss", "ece": "ECE on dev data", "accuracy": "accuracy on dev data"}


def prepare_extended(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> pa.Table:
    """Return `run`, `epoch`, `loss`, `accuracy`, `ece` and `nll` of each epoch, from the logs of runs.

    Epoch 0 is before fine-tuning.
    """
    rows = []
    for run, history in histories.items():
        if not history:
            raise InputError(f"{run}: has no log of its epochs (log.jsonl)")
        if not fine_tuned(history):
            raise InputError(f"{run}: was not fine-tuned (--epochs 0), so that there are no epochs to draw")
        for entry in history:
            dev = entry.get("dev", {})
            figures = {name: dev.get(name) for name in ("accuracy", "ece", "nll")}
            rows.append({"run": run, "epoch": int(entry["epoch"]), "loss": entry.get("loss"), **figures})
    kinds = {"run": pa.string(), "epoch": pa.int64()}
    names = ("run", "epoch", "loss", "accuracy", "ece", "nll")
    return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name, pa.float64())) for name in names})


def draw_extended(table: pa.Table) -> "Figure":
    """Return a figure with a panel each for loss, ECE and accuracy, and a line for each run."""
    run = np.array(table["run"].to_pylist(), dtype=object)
    epochs = np.asarray(table["epoch"])
    with look():
        figure = new_figure(4.2 * len(_PANELS), 3.6)
        for place, (name, title) in enumerate(_PANELS.items(), start=1):
            axes = figure.add_subplot(1, len(_PANELS), place)
            values = np.array(table[name].to_pylist(), dtype=np.float64)
            for who, (colour, _) in zip(dict.fromkeys(run), cycle(STYLES), strict=False):
                here, before = (run == who) & (epochs > BEFORE), (run == who) & (epochs == BEFORE)
                axes.plot(epochs[here], values[here], color=colour, linewidth=1.4, label=literal(who))
                # What was before is another model, its head at full size: a point of its own.
                axes.plot(epochs[before], values[before], color=colour, marker="o", markersize=4, linestyle="none")
            axes.set_title(title, loc="left")
            axes.set_xlabel("epoch (0: before fine-tuning)" if (epochs == BEFORE).any() else "epoch")
            axes.legend(frameon=False, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
