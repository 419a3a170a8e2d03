"""The table that examples were read from, as it was: for copies of it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmix.data.columns import find_columns, with_usual
from calmix.data.examples import Examples
from calmix.data.idx import is_idx
from calmix.data.origin import Origin
from calmix.data.reading import holds_table
from calmix.data.tables import read_table, write_table

__all__ = ["original_table", "write_copy"]


def original_table(
    source: str,
    examples: Examples,
    columns: Mapping[str, str | None],
    *,
    usual: Mapping[str, str] | None = None,
    table: pa.Table | None = None,
) -> tuple[pa.Table, str]:
    """Return the whole table, row by row that of the examples, and which column holds the label.

    Where there was no table (a hub data set, images in files), it is one with the examples and their labels; images
    are in it with their bytes. `columns` and `usual` are those the examples were read with, `table` what was read, if
    that is at hand.
    """
    if examples.kind == "image" and (os.path.isdir(source) or is_idx(source)):
        files = pa.array([examples.images.encoded(row) for row in range(len(examples))], pa.large_binary())
        names = pa.array([examples.label_names[k] for k in examples.labels])
        return pa.table({"id": examples.table["id"], "image": files, "label": names}), "label"
    if holds_table(source):
        table = read_table(source) if table is None else table
        read: dict[str, Any] = {**with_usual(columns, usual or {}, table.column_names)}
        return table, find_columns(table, Origin(source), **read).label or ""
    names = np.array(examples.label_names, dtype=object)
    label = pa.array(names[examples.labels] if len(names) else examples.labels)
    name = "label" if "label" not in examples.table.column_names else "label_"
    return examples.table.append_column(name, label), name


def write_copy(table: pa.Table, path: Path, *, of: str) -> None:
    """Write what became of the table in a file: its cells, and how they are separated, stay as they are there."""
    write_table(table, path, guard=False, like=of if holds_table(of) else None)
