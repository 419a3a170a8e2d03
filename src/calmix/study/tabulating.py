"""Tables: mean and spread over seeds, what differs from the baseline, and average ranks."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calmix.report.titles import HIGHER
from calmix.study.asking import Study
from calmix.study.collecting import Predictions, predictions_of
from calmix.study.comparing import COMPARED, Difference, Resampled, Resamples, difference, resampled
from calmix.study.grid import Cell, Plan
from calmix.study.working import Storage

__all__ = ["UNSCALED", "Column", "Entry", "Table", "tabulate"]

UNSCALED = (*HIGHER, "seconds")
"""Figures that no temperature changes."""


@dataclass(frozen=True)
class Column:
    """A column of a table: a data set of a task, before or after temperature scaling."""

    task: str
    data: str
    scaled: bool
    figure: str
    """What is in it: of CoLA's accuracy, for example, Matthews' correlation."""


@dataclass(frozen=True)
class Entry:
    """A method's figure in a column: mean and spread over so many seeds."""

    mean: float
    spread: float
    seeds: int
    difference: Difference | None = None
    """From the baseline, on the same seeds and rows; None for the baseline itself, and where it is not tested."""
    best: bool = False
    """The best of its column, and its difference from the baseline stands."""


@dataclass(frozen=True, eq=False)
class Table:
    """One figure of every method with one model and one training setting."""

    figure: str
    model: str
    setting: str
    columns: tuple[Column, ...]
    methods: tuple[str, ...]
    entries: Mapping[tuple[str, Column], Entry]
    """(method, column) → figure; missing where no run is finished."""
    ranks: Mapping[tuple[str, bool], float]
    """(method, scaled) → mean rank over the columns that all methods are in."""


def tabulate(plan: Plan, storage: Storage, rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table for each figure the study shows, model and training setting; `rows` are those of `collect`."""
    compare = _Comparison(plan, storage)
    study = plan.study
    return [
        _table(study, figure, model, setting, rows, compare)
        for model, setting, figure in itertools.product(study.models, study.settings, study.figures)
    ]


def _table(
    study: Study, figure: str, model: str, setting: str, rows: Sequence[Mapping[str, Any]], compare: "_Comparison"
) -> Table:
    here = [row for row in rows if (row["model"], row["setting"]) == (model, setting)]
    columns = []
    for task in study.tasks:
        shown = task.figure if figure == "accuracy" else figure
        datasets = ["test"] if figure == "seconds" else ["test", *(f"ood-{name}" for name in task.ood)]
        scalings = (False,) if shown in UNSCALED else (False, True)
        columns += [Column(task.name, data, scaled, shown) for data in datasets for scaled in scalings]
    methods = tuple(method.name for method in study.methods)
    entries: dict[tuple[str, Column], Entry] = {}
    for column in columns:
        for method in methods:
            found = [
                row[column.figure]
                for row in here
                if (row["method"], row["task"], row["data"], row["scaled"])
                == (method, column.task, column.data, column.scaled)
            ]
            if found:
                against = compare(model, setting, method, column)
                entries[method, column] = replace(_entry(found, study.spread), difference=against)
    _mark_best(entries, columns, methods)
    return Table(figure, model, setting, tuple(columns), methods, entries, _ranks(entries, columns, methods))


def _entry(values: list[float | None], spread: str) -> Entry:
    numbers = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    std = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Entry(float(numbers.mean()), std / math.sqrt(len(numbers)) if spread == "error" else std, len(numbers))


def _mark_best(entries: dict[tuple[str, Column], Entry], columns: list[Column], methods: tuple[str, ...]) -> None:
    for column in columns:
        there = [method for method in methods if (method, column) in entries]
        there = [method for method in there if math.isfinite(entries[method, column].mean)]
        if not there:
            continue
        sign = -1 if column.figure in HIGHER else 1
        winner = min(there, key=lambda method: sign * entries[method, column].mean)
        against = entries[winner, column].difference
        if against is not None and against.stands:
            entries[winner, column] = replace(entries[winner, column], best=True)


def _ranks(
    entries: Mapping[tuple[str, Column], Entry], columns: list[Column], methods: tuple[str, ...]
) -> dict[tuple[str, bool], float]:
    """Return each method's mean rank over complete columns; who ties shares the mean of the places."""
    places: dict[tuple[str, bool], list[float]] = {}
    for column in columns:
        if not all((method, column) in entries for method in methods):
            continue
        sign = -1 if column.figure in HIGHER else 1
        values = np.array([sign * entries[method, column].mean for method in methods])
        if not np.isfinite(values).all():
            continue
        for method, value in zip(methods, values, strict=True):
            rank = 1 + float((values < value).sum()) + (float((values == value).sum()) - 1) / 2
            places.setdefault((method, column.scaled), []).append(rank)
    return {key: float(np.mean(ranks)) for key, ranks in places.items()}


class _Comparison:
    """Differences from the baseline; what was read and resampled for it is kept, since every method needs it."""

    def __init__(self, plan: Plan, storage: Storage) -> None:
        self.plan, self.storage = plan, storage
        self.cells = {(c.model, c.setting, c.task, c.method, c.seed): c for c in plan.cells}
        self._said: dict[tuple[Cell, str], Predictions] = {}
        self._resamples: dict[int, Resamples] = {}
        self._figures: dict[tuple[Cell, str, bool], dict[str, Resampled]] = {}

    def __call__(self, model: str, setting: str, method: str, column: Column) -> Difference | None:
        study = self.plan.study
        if method == study.baseline or column.figure not in COMPARED:
            return None
        mine, theirs = [], []
        # The method is there, or it would not be asked about; the baseline may skip the task.
        if (model, setting, column.task, study.baseline, study.seeds[0]) not in self.cells:
            return None
        for seed in study.seeds:
            cell = self.cells[model, setting, column.task, method, seed]
            base = self.cells[model, setting, column.task, study.baseline, seed]
            if not all(self.storage.finished(key) for key in (*cell.runs, *base.runs)):
                continue
            mine.append(self._resampled(cell, column))
            theirs.append(self._resampled(base, column))
        if not mine:
            return None
        return difference(mine, theirs, self._resamples[self._rows(self.cells_of(model, setting, method, column))])

    def cells_of(self, model: str, setting: str, method: str, column: Column) -> tuple[Cell, str]:
        """Return a finished cell of this method and column, and its data set."""
        cells = (self.cells[model, setting, column.task, method, seed] for seed in self.plan.study.seeds)
        return next(c for c in cells if all(self.storage.finished(key) for key in c.runs)), column.data

    def _resampled(self, cell: Cell, column: Column) -> Resampled:
        """Return a figure in every resample; all that the study shows are computed when the first is asked for."""
        key = (cell, column.data, column.scaled)
        if key not in self._figures:
            said, study = self._predictions(cell, column.data), self.plan.study
            rows = len(said.labels)
            if rows not in self._resamples:
                self._resamples[rows] = Resamples(rows)
            shown = {*study.figures, *(task.figure for task in study.tasks if task.name == cell.task)}
            figures = [name for name in COMPARED if name in shown and not (column.scaled and name in UNSCALED)]
            self._figures[key] = resampled(said, figures, self._resamples[rows], scaled=column.scaled, bins=study.bins)
        return self._figures[key][column.figure]

    def _rows(self, where: tuple[Cell, str]) -> int:
        return len(self._predictions(*where).labels)

    def _predictions(self, cell: Cell, data: str) -> Predictions:
        if (cell, data) not in self._said:
            self._said[cell, data] = predictions_of(cell, self.storage, data)
        return self._said[cell, data]
