"""Cells that are read as text: texts, choices and ids."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calmix.data.origin import Origin, shown

__all__ = ["choice_cells", "id_cells", "is_list", "text_cells"]


def text_cells(column: pa.ChunkedArray, name: str, origin: Origin) -> pa.ChunkedArray:
    """The column as strings; `InputError` if a cell is missing or blank."""
    strings = _strings(column, name, origin)
    blank = np.flatnonzero(_blank(strings))
    if len(blank):
        more = f" (and {len(blank) - 1} more rows)" if len(blank) > 1 else ""
        raise origin.error(f"no text in column {shown(name)} at {origin.row(blank[0])}{more}; fill or drop such rows")
    return strings


def id_cells(column: pa.ChunkedArray, name: str, origin: Origin) -> pa.ChunkedArray:
    """The column as strings; `InputError` if a cell is missing or two are the same."""
    strings = _strings(column, name, origin)
    blank = np.flatnonzero(_blank(strings))
    if len(blank):
        raise origin.error(f"no id in column {shown(name)} at {origin.row(blank[0])}; fill it in, or rename the column")
    first: dict[str, int] = {}
    if len(strings.unique()) < len(strings):
        for row, key in enumerate(strings.to_pylist()):
            if key in first:
                raise origin.error(
                    f"the id {shown(key)} in column {shown(name)} is at {origin.row(first[key])} and at "
                    f"{origin.row(row)}; ids must differ (without an id column they are made from the texts)"
                )
            first[key] = row
    return strings


def choice_cells(table: pa.Table, names: tuple[str, ...], origin: Origin) -> pa.ChunkedArray:
    """The choices of each row as lists of strings, from one column of lists or from several columns."""
    if len(names) > 1:
        columns = [text_cells(table[name], name, origin).to_pylist() for name in names]
        rows = list(zip(*columns, strict=True))
        return pa.chunked_array([pa.array(rows, pa.list_(pa.string()))])
    name, column = names[0], table[names[0]]
    if _is_text(column.type):
        column = pa.chunked_array([_parsed(column, name, origin)])
    if not is_list(column.type) or pa.types.is_nested(column.type.value_type):
        raise origin.error(f'column {shown(name)} holds no lists of choices; write them as ["…", "…"]')
    lists = pc.cast(column, pa.list_(pa.string()))
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    few = np.flatnonzero(counts < 2)
    if len(few):
        raise origin.error(f"fewer than two choices in column {shown(name)} at {origin.row(few[0])}")
    blank = np.flatnonzero(_blank(pc.list_flatten(lists)))
    if len(blank):
        row = np.searchsorted(np.cumsum(counts), blank[0], side="right")
        raise origin.error(f"an empty choice in column {shown(name)} at {origin.row(int(row))}; fill or drop it")
    return lists


def _parsed(column: pa.ChunkedArray, name: str, origin: Origin) -> pa.Array:
    rows: list[Any] = []
    for row, cell in enumerate(column.to_pylist()):
        try:
            value = json.loads(cell or "")
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
            raise origin.error(
                f"column {shown(name)} at {origin.row(row)} is not a list of choices: {shown(cell)}; "
                'write it as ["…", "…"]'
            )
        rows.append([str(item) for item in value])
    return pa.array(rows, pa.list_(pa.string()))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists, of whatever make."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _strings(column: pa.ChunkedArray, name: str, origin: Origin) -> pa.ChunkedArray:
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not pa.types.is_nested(column.type):
            return column.cast(pa.string())
    except pa.lib.ArrowException:
        pass
    raise origin.error(f"column {shown(name)} holds {shown(str(column.type))}, not text; name another column")


def _blank(strings: pa.ChunkedArray) -> Any:
    empty = pc.equal(pc.utf8_trim_whitespace(strings), "")
    return np.asarray(pc.fill_null(empty, True), dtype=bool)
