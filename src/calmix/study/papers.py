"""A paper's figures beside ours: read from a table, cell by cell."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calmix.data import read_table
from calmix.data.gathering import find_inside
from calmix.data.tasks import checked_keys
from calmix.errors import InputError

__all__ = ["Paper", "PaperFigures", "parse_paper", "read_paper"]

_COLUMNS = ("table", "model", "task", "data", "method", "figure", "scaled", "value", "spread")


@dataclass(frozen=True)
class Paper:
    """Where the figures of a paper are, and which of them are meant."""

    file: str
    """A CSV file in the study's folder."""
    tables: tuple[str, ...]
    model: str
    """The paper's model that is shown."""


@dataclass(frozen=True)
class PaperFigures:
    """What a paper reports for its model: (method, task, data, figure, scaled) → value and spread."""

    model: str
    values: Mapping[tuple[str, str, str, str, bool], tuple[float, float]]


def parse_paper(values: Any, where: str) -> Paper | None:
    """Return where a paper's figures are, from the study's table; None where it has none."""
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise InputError(
            f'{where}: is a table, as in {{ file = "papers/p1.csv", tables = ["1"], model = "BERT-base" }}'
        )
    checked_keys(values, ["file", "tables", "model"], where)
    if lacking := [key for key in ("file", "tables", "model") if key not in values]:
        raise InputError(f"{where}: says nothing about {lacking[0]!r}")
    tables = values["tables"]
    if not isinstance(tables, list) or not all(isinstance(table, str) for table in tables):
        raise InputError(f'{where}.tables: must be a list of names, as in ["1", "2"]')
    return Paper(str(values["file"]), tuple(tables), str(values["model"]))


def read_paper(paper: Paper, folder: Path) -> PaperFigures:
    """Return a paper's figures, in our units: shares instead of percentages."""
    path = find_inside(folder, paper.file)
    table = read_table(path)
    if lacking := [name for name in _COLUMNS if name not in table.column_names]:
        raise InputError(f"{path}: has no column {lacking[0]!r}")
    found: dict[tuple[str, str, str, str, bool], tuple[float, float]] = {}
    for row in table.to_pylist():
        if row["table"] not in paper.tables or row["model"] != paper.model:
            continue
        factor = 1.0 if row["figure"] in ("nll", "brier") else 100.0
        key = (row["method"], row["task"], row["data"], row["figure"], row["scaled"] == "true")
        try:
            spread = float(row["spread"]) / factor if row["spread"] else math.nan
            found[key] = (float(row["value"]) / factor, spread)
        except ValueError:
            raise InputError(f"{path}: {row['value']!r} or {row['spread']!r} is no number") from None
    if not found:
        raise InputError(f"{path}: has no figures of {paper.model} in table {', '.join(paper.tables)}")
    return PaperFigures(paper.model, found)
