"""Votes: how often, or how probably, each label was given to a row."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calmix.data.keys import spelt_like
from calmix.data.labels import sorted_names
from calmix.data.origin import Origin, closest, listed, shown

__all__ = ["vote_targets"]


def vote_targets(
    column: pa.ChunkedArray,
    name: str,
    origin: Origin,
    *,
    label_names: Sequence[str] | None = None,
    found_names: Sequence[str] = (),
    spelt_alike: bool = False,
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The label distribution of each row [n, K], and the names of the K labels.

    A cell is a list of numbers, in the order of the label names (`label_names`, or those found in the label
    column), or a mapping from label to number; either may be written as JSON. Rows are normalised to sum to 1. With
    `spelt_alike`, labels that differ from one of `label_names` in case or blanks alone come after those.
    """
    cells = [_cell(value, name, row, origin) for row, value in enumerate(_values(column))]
    mappings = [cell for cell in cells if isinstance(cell, dict)]
    names = tuple(label_names or ())
    if not names and mappings:
        names = sorted_names({key for cell in mappings for key in cell} | set(found_names))
    elif names and spelt_alike:
        names += tuple(spelt_like({key for cell in mappings for key in cell}, names))
    names = names or tuple(found_names)
    if not names:
        raise origin.error(
            f"column {shown(name)} does not say which label each number is for; "
            "give the label names or a label column, or write the votes as {label: number}"
        )
    rows = [
        _in_order(cell, names, f"column {shown(name)} at {origin.row(row)}", origin) for row, cell in enumerate(cells)
    ]
    return _normalised(rows, name, origin), names


def _in_order(cell: Any, names: tuple[str, ...], place: str, origin: Origin) -> list[Any]:
    """The numbers of a cell, one for each name."""
    if isinstance(cell, dict):
        unknown = next((key for key in cell if key not in names), None)
        if unknown is not None:
            raise origin.error(
                f"unknown label {shown(unknown)} in {place}{closest(unknown, names)} (known: {listed(names)})"
            )
        return [cell.get(key) or 0 for key in names]
    if len(cell) != len(names):
        raise origin.error(f"{len(cell)} numbers in {place}, but {len(names)} labels ({listed(names)})")
    return list(cell)


def _normalised(rows: list[list[Any]], name: str, origin: Origin) -> NDArray[np.float64]:
    votes = np.array([[np.nan if number is None else number for number in row] for row in rows], dtype=np.float64)
    bad = ~np.isfinite(votes).all(axis=1) | (votes < 0).any(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise origin.error(f"votes in column {shown(name)} at {origin.row(row)} must be numbers from 0 upwards")
    votes /= np.maximum(votes.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)  # the sum stays finite
    total = votes.sum(axis=1, keepdims=True)
    if not total.all():
        raise origin.error(f"no votes in column {shown(name)} at {origin.row(int(np.argmin(total)))}; drop such rows")
    return np.asarray(votes / total)


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_map(column.type):
        return [None if cell is None else dict(cell) for cell in column.to_pylist()]
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return list(column.to_pylist())


def _cell(value: Any, name: str, row: int, origin: Origin) -> Any:
    """A list of numbers, or a mapping from label to number."""
    read = value
    if isinstance(value, str):
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            read = None
    numbers = list(read.values()) if isinstance(read, dict) else read
    if not isinstance(numbers, list) or not all(
        number is None or (isinstance(number, int | float) and not isinstance(number, bool)) for number in numbers
    ):
        raise origin.error(
            f"column {shown(name)} at {origin.row(row)} holds no votes: {shown(value)}; "
            'write a list of numbers or {"label": number}'
        )
    return {str(key): number for key, number in read.items()} if isinstance(read, dict) else read
