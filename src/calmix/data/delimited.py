"""CSV and TSV: every cell a string, exactly as it stands in the file."""

import codecs
import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from calmix.data.files import open_bytes
from calmix.data.origin import listed, shown
from calmix.errors import InputError

__all__ = ["Layout", "guarded", "layout_of", "read_delimited", "write_delimited"]

_BLOCK = 16 << 20  # a row longer than this goes to the careful reader
_ROWS = 4096  # written at a time
_SPECIAL = {"\t": "tabs", ",": "commas", ";": "semicolons"}
# What a spreadsheet takes for the beginning of a formula.
_FORMULA = r"\A([=+\-@\t\r])"


@dataclass(frozen=True)
class Layout:
    """How a CSV or TSV file holds its cells: what separates them, what ends a line, and how it begins."""

    delimiter: str
    end: str = "\n"
    mark: bool = False
    """Whether it begins with a byte order mark."""


def read_delimited(path: Path, delimiter: str) -> pa.Table:
    """The table in a CSV or TSV file (UTF-8, with or without a byte order mark, header in the first row).

    Where the header of a CSV file has semicolons and no commas, as spreadsheets of many countries write it, cells are
    separated by semicolons.
    """
    delimiter, header = _separated(path, delimiter)
    options = {
        # A process that ends while Arrow is still ending its threads dies of it, whatever its exit code was to be.
        "read_options": pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        "parse_options": pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            strings_can_be_null=False,
            quoted_strings_can_be_null=False,
        ),
    }
    try:
        with open_bytes(path) as stream:
            table = pa.csv.read_csv(stream, **options)
    except pa.lib.ArrowException:
        return _careful(path, delimiter)
    # A line break in a cell is either meant or a stray quote that swallowed rows: only the strict
    # reader can tell.
    if table.column_names != header or any(_has_line_break(column) for column in table.columns):
        return _careful(path, delimiter)
    return table


def layout_of(path: Path, delimiter: str) -> Layout:
    """Return the layout of a CSV or TSV file, for copies of it: lines end as its header does."""
    with open_bytes(path) as stream:
        mark = stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return Layout(_separated(path, delimiter)[0], _line_end(path), mark)


def _line_end(path: Path) -> str:
    quotes = 0
    for line in _lines(path):
        quotes += line.count('"')
        if quotes % 2 == 0:  # otherwise it breaks inside a cell
            return next((end for end in ("\r\n", "\r") if line.endswith(end)), "\n")
    return "\n"


def _has_line_break(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, "[\r\n]")).as_py())


def _lines(path: Path) -> Iterator[str]:
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}: line {number} is not UTF-8; save the file as UTF-8") from error
            if "\r" in line[:-2]:
                yield from re.split(r"(?<=\r)(?![\n]|\Z)", line)
            else:
                yield line


def _records(path: Path, delimiter: str, *, quoted: bool = True) -> Iterator[tuple[int, list[str]]]:
    """The records of a file, strictly read, each with the line it starts on; blank lines are left out."""
    reader = csv.reader(
        _lines(path), delimiter=delimiter, strict=True, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
    line = 1
    limit = csv.field_size_limit(2**31 - 1)
    try:
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1
    except csv.Error as error:
        if "end of data" in str(error):
            problem = f'the quote that opens on line {line} is never closed; double a quote ("") that is text'
        else:
            problem = f'line {reader.line_num} has text after a closing quote; double a quote ("") that is text'
        raise InputError(f"{path}: {problem}") from error
    finally:
        csv.field_size_limit(limit)


def _separated(path: Path, delimiter: str) -> tuple[str, list[str]]:
    """Return what separates the cells of a file, and its header: semicolons, it may be, in place of commas."""
    try:
        header = _header(path, delimiter)
    except InputError:
        # "text";"label" cannot be read with commas.
        if delimiter != ",":
            raise
        try:
            header = _header(path, ";")
        except InputError:
            header = []
        if len(header) < 2:
            _refuse_bars(path)
            raise
        return ";", header
    if delimiter == "," and len(header) == 1 and ";" in header[0]:
        return ";", _header(path, ";")
    return delimiter, header


def _header(path: Path, delimiter: str) -> list[str]:
    records = _records(path, delimiter)
    _, header = next(records, (0, []))
    records.close()  # type: ignore[attr-defined]
    if not header:
        raise InputError(f"{path}: the file is empty")
    repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if repeated == [""] and header[0]:
        raise InputError(
            f"{path}: the first line, {shown(header[0])}, names {len(header) - header.count('')} of {len(header)} "
            "columns: if it is a title, remove what is above the names of the columns; otherwise name them all"
        )
    if repeated:
        raise InputError(f"{path}: several columns are called {listed(repeated)}; rename them")
    other = next((mark for mark in ";\t," if mark != delimiter and mark in header[0]), None)
    if len(header) == 1 and other is None:
        _refuse_bars(path)
    if len(header) == 1 and other and (delimiter, other) != (",", ";"):
        raise InputError(
            f"{path}: the header {shown(header[0])} is separated by {shown(other)}; "
            "save it with commas (.csv) or tabs (.tsv)"
        )
    return header


def _refuse_bars(path: Path) -> None:
    """Refuse a file whose header is several names with bars between them; one name with a bar in it is in quotes."""
    header: list[str] = []
    with suppress(InputError):  # what is wrong with it is said by who reads it as it is meant
        _, header = next(_records(path, "|"), (0, []))
    if len(header) > 1:
        named = shown("|".join(header))
        raise InputError(f"{path}: the header {named} is separated by '|'; save it with commas (.csv) or tabs (.tsv)")


def _careful(path: Path, delimiter: str) -> pa.Table:
    """The table, read strictly and row by row; the first defect is an `InputError` that names its line."""
    try:
        return _collect(path, delimiter, quoted=True)
    except InputError:
        if delimiter != "\t":
            raise
        # Many TSV files know no quoting at all. Such a file has the same number of tabs in every line.
        try:
            return _collect(path, delimiter, quoted=False)
        except InputError:
            pass
        raise


def _collect(path: Path, delimiter: str, *, quoted: bool) -> pa.Table:
    records = _records(path, delimiter, quoted=quoted)
    _, header = next(records)
    rows = []
    for line, record in records:
        if len(record) != len(header):
            _ragged(path, delimiter, line, len(record), header)
        rows.append(record)
    columns = zip(*rows, strict=True) if rows else ((),) * len(header)
    return pa.table({name: pa.array(cells, pa.string()) for name, cells in zip(header, columns, strict=True)})


def _ragged(path: Path, delimiter: str, line: int, fields: int, header: list[str]) -> NoReturn:
    title = ", or remove the first line if it is a title" if len(header) == 1 and " " in header[0].strip() else ""
    raise InputError(
        f"{path}: line {line} has {fields} fields, the header has {len(header)}; "
        f"put quotes around cells that contain {_SPECIAL[delimiter]}{title}"
    )


def write_delimited(table: pa.Table, sink: Any, layout: Layout, *, guard: bool = True, header: bool = True) -> None:
    """Write a table of plain columns; with `guard`, strings that a spreadsheet would run get a `'` in front.

    Cells are quoted where they must be, so that a copy of a table differs from it in what was changed alone. In a
    table of one column all are: an empty line is no row, and a semicolon in its header would look like a delimiter.
    """
    if guard:
        table = pa.Table.from_arrays([_guarded(column) for column in table.columns], names=table.column_names)
    delimiter, end = layout.delimiter, layout.end
    rule = "" if table.num_columns == 1 else f'[{delimiter}"\r\n]'
    if header:
        # A byte order mark that belongs to the first name would be taken for the file's, and commas in a name for what
        # separates them, unless the first is in quotes.
        commas = delimiter == ";" and any("," in name for name in table.column_names)
        names = _quoted(pa.array(table.column_names), "" if commas else rule and rule.replace("[", "[\ufeff"))
        start = codecs.BOM_UTF8 if layout.mark else b""
        sink.write(start + (delimiter.join(names.to_pylist()) + end).encode())
    for batch in table.to_batches(max_chunksize=_ROWS):
        cells = [_quoted(pc.fill_null(column.cast(pa.large_string()), ""), rule) for column in batch.columns]
        lines = pc.binary_join_element_wise(*cells, pa.scalar(delimiter, pa.large_string()))
        sink.write((end.join(lines.to_pylist()) + end).encode())


def _quoted(cells: pa.Array, rule: str) -> pa.Array:
    """Return cells with quotes around those in which the rule finds something."""
    marks = pa.scalar('"', cells.type)
    quoted = pc.binary_join_element_wise(
        marks, pc.replace_substring(cells, '"', '""'), marks, pa.scalar("", cells.type)
    )
    return pc.if_else(pc.match_substring_regex(cells, rule), quoted, cells)


def guarded(text: str) -> str:
    """Return a cell as `write_delimited` writes it: with a `'` in front if a spreadsheet would run it."""
    return re.sub(_FORMULA, r"'\1", text)


def _guarded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.replace_substring_regex(pc.fill_null(column, ""), _FORMULA, r"'\1")
