"""Figures from a study's rows: against the strength of mixing, and methods as bars (Thulasidasan et al. 2019)."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from calmix.data import read_table
from calmix.errors import InputError
from calmix.report.figures import STYLES, literal, look, new_figure
from calmix.report.titles import DECIMALS, TITLES, model_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_alpha", "draw_bars", "prepare_alpha", "prepare_bars", "read_study_rows", "rows_of_studies"]


def read_study_rows(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the methods and the rows of a study's outcome, or of what `results/` keeps of one."""
    kept = (folder / "about.json").is_file()
    file = folder / ("about.json" if kept else "study.json")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = read_table(folder / "study.parquet").to_pylist() if kept else found["rows"]
        return list(found["study"]["methods"]), list(rows)
    except FileNotFoundError:
        raise InputError(f"{folder}: holds no outcome of a study: give the --out of calmix study") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: is damaged ({error}); make it again: calmix study … --tables") from None


def rows_of_studies(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of several studies, by name, as those of one.

    A method that two studies made by other runs on the same data is told apart by the study's name. One that is of the
    same runs, by their keys, counts once.
    """
    said: dict[str, dict[str, dict[tuple[Any, ...], list[Mapping[str, Any]]]]] = {}
    for study, rows in found.items():
        for row in rows:
            here = said.setdefault(row["method"], {}).setdefault(study, {})
            here.setdefault((*_place(row), row["scaled"]), []).append(row)
    joined: list[dict[str, Any]] = []
    for method, studies in said.items():
        whole: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for places in studies.values():
            whole |= {place: rows for place, rows in places.items() if place not in whole}
        agree = all(_made_of(rows) == _made_of(whole[at]) for places in studies.values() for at, rows in places.items())
        told = {method: whole} if agree else {f"{method} ({study})": places for study, places in studies.items()}
        joined += [{**row, "method": name} for name, places in told.items() for rows in places.values() for row in rows]
    return joined


def prepare_alpha(
    methods: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    *,
    recipe: str = "input-mixup",
    figures: Sequence[str] = ("accuracy", "ece", "oe"),
) -> pa.Table:
    """Return each figure of a recipe by its option α, means and spread over seeds; plain training is α = 0.

    Figures 2h–j: unscaled, on the test set and other domains.
    """
    strength = {
        method["name"]: float(method["options"]["alpha"])
        for method in methods
        if method["recipe"] == recipe and not method["of"] and "alpha" in method["options"]
    }
    strength |= {m["name"]: 0.0 for m in methods if _is_plain(m)}
    if len(set(strength.values()) - {0.0}) < 1:
        raise InputError(
            f"no method of this study is {recipe} with an alpha: vary it, as in vary = {{alpha = [0.1, 0.4]}}"
        )
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["method"] in strength and not row["scaled"] and row["data"] != "dev":
            for figure in figures:
                found.setdefault((*_place(row), figure, strength[row["method"]]), []).append(_number(row[figure]))
    return _table(found, ("task", "model", "setting", "data", "figure", "alpha"))


def prepare_bars(
    rows: Sequence[Mapping[str, Any]],
    *,
    methods: Sequence[str] | None = None,
    figures: Sequence[str] = ("accuracy", "ece", "oe"),
    scaled: bool = False,
) -> pa.Table:
    """Return each figure of each method on each data set: means and spread over seeds (figures 2e–g, 4 and 6)."""
    known = list(dict.fromkeys(row["method"] for row in rows))
    for name in methods or []:
        if name not in known:
            raise InputError(f"there is no method {name!r} (there are: {', '.join(known)})")
    for figure in figures:
        if figure not in TITLES:
            raise InputError(f"there is no figure {figure!r} (there are: {', '.join(TITLES)})")
    found: dict[tuple[Any, ...], list[float]] = {}
    for method in methods or known:
        for row in rows:
            if row["method"] == method and row["scaled"] == scaled and row["data"] != "dev":
                for figure in figures:
                    found.setdefault((*_place(row), figure, method), []).append(_number(row[figure]))
    if not found:
        raise InputError("no run of the study is finished, so that there is nothing to draw")
    return _table(found, ("task", "model", "setting", "data", "figure", "method"))


def draw_alpha(table: pa.Table) -> "Figure":
    """Return a figure with a panel for each figure and a line for each data set, over α."""
    rows = table.to_pylist()
    places = list(dict.fromkeys(_named(row, rows) for row in rows))
    figures = list(dict.fromkeys(row["figure"] for row in rows))
    with look():
        canvas = new_figure(4.4 * len(figures), 3.8)
        for number, figure in enumerate(figures, start=1):
            axes = canvas.add_subplot(1, len(figures), number)
            for place, (colour, marker) in zip(places, cycle(STYLES), strict=False):
                here = sorted(
                    (row for row in rows if row["figure"] == figure and _named(row, rows) == place),
                    key=lambda row: row["alpha"],
                )
                axes.errorbar(
                    [row["alpha"] for row in here],
                    [_shown(figure, row["mean"]) for row in here],
                    yerr=[_shown(figure, row["spread"] or 0.0) for row in here],
                    color=colour, marker=marker, markersize=5, capsize=2, label=literal(place),
                )  # fmt: skip
            axes.set_title(TITLES[figure], loc="left")
            axes.set_xlabel("α (0: no mixing)")
            axes.spines[["top", "right"]].set_visible(False)
        canvas.axes[0].legend(frameon=False, fontsize=9)
    return canvas


def draw_bars(table: pa.Table) -> "Figure":
    """Return a figure with a panel for each figure, a group of bars for each data set, a bar for each method."""
    rows = table.to_pylist()
    places = list(dict.fromkeys(_named(row, rows) for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figures = list(dict.fromkeys(row["figure"] for row in rows))
    wide = 0.8 / len(methods)
    with look():
        canvas = new_figure(max(4.4, 0.35 * len(methods) * len(places) + 1) * len(figures), 4.0)
        for number, figure in enumerate(figures, start=1):
            axes = canvas.add_subplot(1, len(figures), number)
            for turn, method in enumerate(methods):
                here = {_named(row, rows): row for row in rows if (row["figure"], row["method"]) == (figure, method)}
                at = [place for place in places if place in here]
                axes.bar(
                    [places.index(place) + wide * (turn - (len(methods) - 1) / 2) for place in at],
                    [_shown(figure, here[place]["mean"]) for place in at],
                    wide,
                    yerr=[_shown(figure, here[place]["spread"] or 0.0) for place in at],
                    color=f"C{turn % 10}", edgecolor="white", hatch="" if turn < 10 else "//", capsize=2,
                    label=literal(method),
                )  # fmt: skip
            axes.set_title(TITLES[figure], loc="left")
            axes.set_xticks(range(len(places)), [literal(place) for place in places])
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = canvas.axes[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=min(4, len(methods)), frameon=False)
    return canvas


def _is_plain(method: Mapping[str, Any]) -> bool:
    plain = method["recipe"] == "erm" and not method["options"] and not method["of"]
    return plain and not method.get("subset") and not method.get("training")


def _place(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["task"], row["model"], row["setting"], row["data"]


def _named(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a row's data set is called, with the model and the setting where there are several."""
    place = row["task"] if row["data"] == "test" else f"{row['task']} → {row['data'].removeprefix('ood-')}"
    several = [key for key in ("model", "setting") if len({other[key] for other in rows}) > 1]
    return " · ".join([place, *(model_title(str(row[key])) for key in several)])


def _made_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    return sorted((row["seed"], row["run"]) for row in rows)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _shown(figure: str, value: float) -> float:
    return value if figure in DECIMALS else 100 * value


def _table(found: Mapping[tuple[Any, ...], list[float]], names: Sequence[str]) -> pa.Table:
    rows = []
    for key, values in found.items():
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        figures = {"mean": float(np.mean(values)), "spread": spread, "seeds": len(values)}
        rows.append({**dict(zip(names, key, strict=True)), **figures})
    return pa.Table.from_pylist(rows)
