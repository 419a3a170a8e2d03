"""JSON Lines, and JSON files that hold one array: tables of whatever the objects hold."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from calmix.data.files import open_bytes
from calmix.errors import InputError

__all__ = ["as_array", "read_json", "write_json_lines"]


def read_json(path: Path) -> pa.Table:
    """The table in a file of JSON objects, one a line, or (when it begins with `[`) in one array.

    Read with the standard library: Arrow's own reader turns strings that look like dates into dates.
    """
    rows: list[dict[str, Any]] = []
    for place, row in _rows(path):
        if not isinstance(row, dict):
            raise InputError(f'{path}: {place} is not a JSON object; write {{"text": …, "label": …}}')
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({_clean(name): as_array([row.get(name) for row in rows]) for name in names})


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with open_bytes(path) as stream:
        blank = True
        for number, raw in enumerate(stream, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip(" \t\r\n")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}: line {number} is not UTF-8; save the file as UTF-8") from error
            if not line:
                continue
            if blank and line.startswith("["):
                yield from _array(path, line, stream)
                return
            blank = False
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "unreadable"
                raise InputError(
                    f"{path}: line {number} is not valid JSON ({why}); write one object per line"
                ) from error


def _array(path: Path, first: str, stream: BinaryIO) -> Iterable[tuple[str, Any]]:
    try:
        rows = json.loads(first + "\n" + stream.read().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the file is not UTF-8; save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{path}: not valid JSON{where}; write an array of objects, or one a line") from error
    return ((f"item {number}", row) for number, row in enumerate(rows, 1))


def as_array(values: list[Any]) -> pa.Array:
    """An Arrow array of Python values; a column of several types becomes one of strings."""
    try:
        return pa.array(values)
    except UnicodeEncodeError:
        return as_array([_clean(value) for value in values])
    except (pa.lib.ArrowException, OverflowError, TypeError):
        strings = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array([_clean(value) for value in strings], pa.string())


def _clean(value: Any) -> Any:
    """The value with half surrogate pairs, which no UTF-8 text can hold, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def write_json_lines(table: pa.Table, sink: BinaryIO) -> None:
    """Write a table as one JSON object per line; numbers that JSON does not know (NaN) become null."""
    columns = [
        pc.if_else(pc.is_finite(column), column, None) if pa.types.is_floating(column.type) else column
        for column in table.columns
    ]
    for batch in pa.Table.from_arrays(columns, names=table.column_names).to_batches(max_chunksize=10_000):
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in batch.to_pylist())
        sink.write("".join(lines).encode("utf-8"))
