"""Scores of familiar and of unfamiliar data: how far their distributions are apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calmix.calibration import ood_auroc
from calmix.errors import InputError
from calmix.report.figures import STYLES, literal, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ScoreDensity", "draw_unfamiliar", "prepare_unfamiliar"]

_AXES = {
    "max_probability": "winning probability",
    "negative_entropy": "negative entropy",
    "margin": "margin of the two largest probabilities",
    "negative_energy": "negative energy",
}


@dataclass(frozen=True, eq=False)
class ScoreDensity:
    """How a score of one model is distributed on one data set."""

    edges: NDArray[np.float64]
    density: NDArray[np.float64]
    mean: float
    auroc: float | None
    """Against the familiar data; None for that itself."""


def prepare_unfamiliar(
    table: pa.Table, *, score: str = "max_probability", bins: int = 40
) -> dict[str, dict[str, ScoreDensity]]:
    """Return data set → model → distribution, from a table of scores (`ood-scores.parquet`); familiar data first."""
    if score not in _AXES:
        raise InputError(f"a score is one of {', '.join(_AXES)}, not {score!r}")
    table = table.filter(pc.is_valid(table[score]))
    if not len(table):
        raise InputError(f"no model there has a {score}")
    values = np.asarray(table[score], dtype=np.float64)
    low, high = (0.0, 1.0) if score in ("max_probability", "margin") else (values.min(), values.max())
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    model, data = (np.array(table[name].to_pylist(), dtype=object) for name in ("model", "data"))
    inside = np.asarray(table["inside"])
    names = list(dict.fromkeys([*data[inside], *data]))
    found: dict[str, dict[str, ScoreDensity]] = {}
    for name in names:
        for who in dict.fromkeys(model):
            here = values[(model == who) & (data == name)]
            if not len(here):
                continue
            familiar = values[(model == who) & inside]
            outside = not bool(inside[data == name][0])
            density, _ = np.histogram(here, edges, density=True)
            area = ood_auroc(familiar, here) if outside else None
            found.setdefault(name, {})[who] = ScoreDensity(edges, density, float(here.mean()), area)
    return found


def draw_unfamiliar(panels: Mapping[str, Mapping[str, ScoreDensity]], *, score: str = "max_probability") -> "Figure":
    """Return a figure with a panel for each data set and a line for each model."""
    with look():
        figure = new_figure(4.6 * len(panels), 4.0)
        for place, (data, models) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(1, len(panels), place)
            for (name, found), (colour, _), line in zip(
                models.items(), cycle(STYLES), cycle(("-", "--", "-.", ":", (0, (1, 3)), (0, (5, 1)))), strict=False
            ):
                label = literal(name) if found.auroc is None else f"{literal(name)} (AUROC {found.auroc:.1%})"
                axes.stairs(found.density, found.edges, color=colour, linestyle=line, linewidth=1.6, label=label)
            familiar = all(found.auroc is None for found in models.values())
            axes.set_title(literal(data) + (", familiar" if familiar else ""), loc="left")
            axes.set_xlabel(_AXES[score])
            axes.set_ylabel("density")
            axes.legend(frameon=False, fontsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
