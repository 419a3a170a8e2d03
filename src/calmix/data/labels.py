"""Labels: names of classes, or the index of the right choice."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calmix.data.keys import spelt_like
from calmix.data.origin import Origin, closest, listed, shown
from calmix.data.texts import is_list

__all__ = ["Cells", "choice_labels", "class_labels", "distinct_cells", "sorted_names"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")
_WHOLE = re.compile(r"([+-]?\d+)(\.0*)?")


@dataclass(frozen=True)
class Cells:
    """The cells of a label column: `values[codes[row]]` is the cell of a row, -1 the code of an empty one."""

    codes: NDArray[np.int64]
    values: list[Any]
    name: str  # how messages call the column

    def place(self, code: int, origin: Origin) -> str:
        """Where the first cell with this code is."""
        return f"{self.name} at {origin.row(int(np.argmax(self.codes == code)))}"


def distinct_cells(column: pa.ChunkedArray, name: str, origin: Origin) -> Cells:
    """The distinct cells of a column; `InputError` if they are lists, which only multi-label data has."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    elif is_list(kind):
        raise _multi_label(f"column {shown(name)}", origin)
    elif pa.types.is_nested(kind):
        raise origin.error(f"column {shown(name)} holds {shown(str(kind))}, not labels; name another with --label")
    encoded = pc.dictionary_encode(column).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no chunks at all, or too many bytes for one
        encoded = pa.concat_arrays(encoded.chunks)
    codes = np.asarray(pc.fill_null(encoded.indices, -1), dtype=np.int64)
    return Cells(codes, encoded.dictionary.to_pylist(), f"column {shown(name)}")


def class_labels(
    cells: Cells,
    origin: Origin,
    *,
    label_names: Sequence[str] | None = None,
    may_be_missing: bool = False,
    spelt_alike: bool = False,
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The class index of each row, and the names of the classes.

    Whole numbers are named without a point (1.0 → "1"). Names are sorted, integers by value, unless
    `label_names` gives them: then every label must be one of them, or, with `spelt_alike`, differ from one in case
    or blanks alone; such spellings come after those given.
    """
    found = [_name(value, cells.name, origin) for value in cells.values]
    if not may_be_missing:
        _require_all(cells, found, origin)
    known = set(label_names or ())
    plain = found if known.issuperset(name for name in found if name is not None) else _whole(found, cells, origin)
    names = sorted_names({name for name in plain if name is not None}) if not label_names else tuple(label_names)
    if not label_names and len(cells.codes) > 50 and len(names) > 0.5 * len(cells.codes):
        raise origin.error(
            f"{cells.name} has {len(names)} different labels in {len(cells.codes)} rows; "
            "is it the label? Name the right column with --label"
        )
    if label_names and spelt_alike:
        names += tuple(spelt_like({name for name in plain if name is not None}, names))
    index = {name: position for position, name in enumerate(names)}
    for code, name in enumerate(plain):
        if name is not None and name not in index:
            raise origin.error(
                f"unknown label {shown(name)} in {cells.place(code, origin)}{closest(name, names)} "
                f"(known: {listed(names)})"
            )
    return _look_up(cells, [-1 if name is None else index[name] for name in plain]), names


def choice_labels(
    cells: Cells, counts: NDArray[np.int64], origin: Origin, *, may_be_missing: bool = False
) -> NDArray[np.int64]:
    """The index of the right choice of each row, written as a number from 0 or as a letter from A."""
    found = [_name(value, cells.name, origin) for value in cells.values]
    if not may_be_missing:
        _require_all(cells, found, origin)
    right = []
    for code, name in enumerate(found):
        whole = _WHOLE.fullmatch(name or "")
        if name is None:
            right.append(-1)
        elif whole:
            right.append(int(whole[1][:10]))
        elif len(name) == 1 and "A" <= name.upper() <= "Z":
            right.append(ord(name.upper()) - ord("A"))
        else:
            raise origin.error(
                f"{shown(name)} in {cells.place(code, origin)} is not a choice; "
                "give the number of the right one, from 0, or its letter"
            )
    labels = _look_up(cells, right)
    given = _look_up(cells, [0 if name is None else 1 for name in found]) == 1
    wrong = np.flatnonzero(given & ((labels < 0) | (labels >= counts)))
    if len(wrong):
        row = int(wrong[0])
        raise origin.error(
            f"choice {labels[row]} in {cells.name} at {origin.row(row)} does not exist: "
            f"there are {counts[row]}, counted from 0"
        )
    return labels


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """Label names in order: by value when all are whole numbers, otherwise by spelling."""
    if all(_WHOLE.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(float(name)), name)))
    return tuple(sorted(names))


def _name(value: Any, column: str, origin: Origin) -> str | None:
    """The label as a name, or None for an empty cell."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        name = value.strip()
        if name.startswith("[") and name.endswith("]") and _is_json(name):
            raise _multi_label(column, origin)
        return None if not name or name.casefold() == "nan" else name
    if isinstance(value, list | tuple | set | frozenset):
        raise _multi_label(column, origin)
    if isinstance(value, bytes):
        raise origin.error(f"{column} holds bytes, not labels; write them as text, or name another with --label")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _whole(names: list[str | None], cells: Cells, origin: Origin) -> list[str | None]:
    """The names, with "1.0" as "1" where all are whole numbers; `InputError` where all are numbers and some not."""
    if not all(name is None or _NUMBER.fullmatch(name) for name in names):
        return names
    for code, name in enumerate(names):
        if name is not None and not _WHOLE.fullmatch(name):
            raise origin.error(
                f"the label {name[:20]} in {cells.place(code, origin)} is a number with a fraction: that is "
                "regression, which calmix does not do; turn the numbers into classes"
            )
    return [None if name is None else name.split(".")[0] for name in names]


def _require_all(cells: Cells, names: list[str | None], origin: Origin) -> None:
    missing = np.flatnonzero(_look_up(cells, [-1 if name is None else 0 for name in names]) < 0)
    if len(missing):
        more = f" (and {len(missing) - 1} more rows)" if len(missing) > 1 else ""
        raise origin.error(
            f"no label in {cells.name} at {origin.row(int(missing[0]))}{more}; fill in or drop such rows"
        )


def _look_up(cells: Cells, of_code: list[int]) -> NDArray[np.int64]:
    return np.array([*of_code, -1], dtype=np.int64)[cells.codes]  # code -1 finds the last entry


def _multi_label(column: str, origin: Origin) -> Exception:
    return origin.error(f"{column} holds several labels per row: multi-label data is not supported; keep one per row")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
