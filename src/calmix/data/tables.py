"""Tables on disk: CSV, TSV, JSON Lines and Parquet, plain or compressed."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from calmix.data.delimited import Layout, layout_of, read_delimited, write_delimited
from calmix.data.files import COMPRESSIONS, atomic_path, compressed, most_bytes, open_bytes
from calmix.data.jsonlines import read_json, write_json_lines
from calmix.data.origin import check_no_address, listed, neighbour
from calmix.errors import InputError

__all__ = [
    "FORMATS",
    "SPREADSHEETS",
    "check_writable",
    "format_of",
    "print_csv",
    "read_table",
    "write_table",
    "write_tables",
]

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_BATCH = 512  # rows of a Parquet file at a time
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
# How the files of today's spreadsheets (zip) and of the older ones begin, whatever they are called.
_SPREADSHEET_STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def format_of(path: str | Path) -> tuple[str, str]:
    """The format ("csv", "tsv", "json" or "parquet") and compression suffix ("" if none) a file name says."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    if not suffixes or suffixes[-1] not in FORMATS:
        raise InputError(
            f"{path}: the file name does not say what the file is; "
            "let it end in .csv, .tsv, .jsonl or .parquet (and .gz, .xz or .zst when compressed)"
        )
    return FORMATS[suffixes[-1]], compression


def read_table(path: str | Path) -> pa.Table:
    """The table in a file, its format and compression told by its name; no cell is reinterpreted.

    Cells of CSV and TSV are strings as they stand ("001", "NA"). Raises `InputError`, with the line, for
    whatever is wrong with the file, and when it has no rows.
    """
    check_no_address(path)
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file{neighbour(path)}")
    if path.is_dir():
        raise InputError(f"{path}: this is a folder; give a file")
    if path.suffix.lower() in SPREADSHEETS:
        raise InputError(f"{path}: is a spreadsheet; save the sheet as CSV, and give that")
    kind, compression = format_of(path)
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    if kind == "parquet":
        table = _read_parquet(path, compression)
    else:
        with open_bytes(path) as stream:
            if stream.read(4) in _SPREADSHEET_STARTS:
                raise InputError(
                    f"{path}: is a spreadsheet or an archive, whatever its name says; save the sheet as CSV"
                )
        table = read_json(path) if kind == "json" else read_delimited(path, _DELIMITERS[kind])
    if table.num_rows == 0:
        raise InputError(f"{path}: there are no rows")
    return table


def _read_parquet(path: Path, compression: str) -> pa.Table:
    try:
        if compression:
            with open_bytes(path) as stream:
                table = _bounded(pa.BufferReader(stream.read()), path)
        else:
            with pa.OSFile(str(path)) as file:
                table = _bounded(file, path)
    except (pa.lib.ArrowException, OSError, UnicodeDecodeError, OverflowError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a whole Parquet file; fetch or write it again") from error
    names = table.column_names
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: several columns are called {listed(repeated)}; rename them")
    return table.replace_schema_metadata()


def _bounded(source: Any, path: Path) -> pa.Table:
    """The table in an open Parquet file, unless it expands beyond measure: a value may be told once and count often."""
    file = pa.parquet.ParquetFile(source)
    most, found, batches = most_bytes(path), 0, []
    plain = pa.schema([field.with_type(_plain_type(field.type)) for field in file.schema_arrow])
    for batch in file.iter_batches(_BATCH):
        batch.validate(full=True)  # offsets inside the file, text that is UTF-8: nothing else has looked
        found += (batch if plain == file.schema_arrow else batch.cast(plain)).nbytes
        if found > most:
            raise InputError(f"{path}: expands to more than {most >> 20:,} MiB; convert it yourself if you trust it")
        batches.append(batch)
    return pa.Table.from_batches(batches, file.schema_arrow).unify_dictionaries().combine_chunks()


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def write_table(table: pa.Table, path: str | Path, *, guard: bool = True, like: str | Path | None = None) -> None:
    """Write a table, its format and compression told by the name, whole or not at all.

    In CSV and TSV, lists and other nested cells are written as JSON, and strings that a spreadsheet would
    run as a formula (beginning with = + - @, a tab or a carriage return) get a `'` in front; without `guard`,
    they stay as they are: for copies of a table that somebody trains on. If `like` is a file of that kind, too, lines
    end as there, the byte order mark is there or not, and semicolons stay semicolons.
    """
    write_tables([table], path, guard=guard, like=like)


def write_tables(
    tables: Iterable[pa.Table], path: str | Path, *, guard: bool = True, like: str | Path | None = None
) -> None:
    """Write the rows of one table after the other, all of the same columns, as `write_table` does.

    Each is on its way to the disk before the next is asked for: what is written need not fit into memory.
    """
    kind, compression = format_of(path)
    with atomic_path(path) as temporary, compressed(temporary, compression) as sink:
        if kind == "parquet":
            _write_parquet(tables, sink)
        elif kind == "json":
            for table in tables:
                write_json_lines(table, sink)
        else:
            _write_delimited(tables, sink, _layout(kind, like), guard=guard)


def _write_parquet(tables: Iterable[pa.Table], sink: Any) -> None:
    writer = None
    try:
        for table in tables:
            writer = writer or pa.parquet.ParquetWriter(sink, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _layout(kind: str, like: str | Path | None) -> Layout:
    """Return how a CSV or TSV file is to be written: as usual, or as another one is."""
    usual = Layout(_DELIMITERS[kind])
    other = "" if like is None else format_of(like)[0]
    if like is None or other not in _DELIMITERS:
        return usual
    found = layout_of(Path(like), _DELIMITERS[other])
    return found if other == kind else replace(found, delimiter=usual.delimiter)


def _write_delimited(tables: Iterable[pa.Table], sink: Any, layout: Layout, *, guard: bool = True) -> None:
    for number, table in enumerate(tables):
        write_delimited(_flat(table), sink, layout, guard=guard, header=number == 0)


def print_csv(tables: Iterable[pa.Table]) -> None:
    """Write the rows of tables to standard output as CSV, guarded as in `write_table`."""
    _write_delimited(tables, sys.stdout.buffer, Layout(","))
    sys.stdout.flush()


def check_writable(path: str | Path, *, images: bool = False) -> None:
    """Refuse a file name that `write_table` could not write to, before any work is done for it.

    Tables with `images` have their bytes in a column.
    """
    if format_of(path)[0] != "parquet" and images:
        raise InputError(f"{path}: only a Parquet file holds images; let it end in .parquet")
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: this is a folder; give a file")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise InputError(f"{path}: cannot be written, since {parent} is not a folder we may write to")


def _flat(table: pa.Table) -> pa.Table:
    return pa.Table.from_arrays([_flat_column(column) for column in table.columns], names=table.column_names)


def _flat_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if not pa.types.is_nested(column.type):
        return column
    values = column.to_pylist()
    cells = [None if value is None else json.dumps(value, ensure_ascii=False, default=str) for value in values]
    return pa.chunked_array([pa.array(cells, pa.string())])
