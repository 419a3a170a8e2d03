"""Predictions as a table: one row per example, readable by anything."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.calibration import Temperature
from calmix.data import Examples, read_table
from calmix.data.origin import Origin, listed, shown
from calmix.data.tables import format_of
from calmix.errors import InputError
from calmix.models import Predictor

__all__ = ["lightened", "prediction_table", "prediction_tables", "read_predictions", "with_guarantees"]

# Rows predicted at a time: enough for texts of every length to find others of their length.
_ROWS = 65_536


def prediction_table(
    examples: Examples,
    probs: NDArray[np.float64],
    *,
    label_names: tuple[str, ...],
    logits: NDArray[np.float32] | None = None,
) -> pa.Table:
    """Return id, gold label if known, predicted label, confidence, and one probability per class.

    Multiple choice has a list of probabilities instead, as long as the row has choices, and labels that are
    the choices' indices. `logits` adds the scores before any recalibration, for people who want to try their own.
    """
    winner = probs.argmax(axis=1)
    names = np.array(label_names or [str(i) for i in range(probs.shape[1])], dtype=object)
    columns: dict[str, pa.Array] = {"id": pa.array(examples.ids, pa.string())}
    if (examples.labels >= 0).all():
        columns["label"] = pa.array(names[examples.labels], pa.string())
    columns["predicted"] = pa.array(names[winner], pa.string())
    columns["confidence"] = pa.array(probs[np.arange(len(probs)), winner])
    counts = examples.choice_counts
    if counts is None:
        columns |= {f"p_{name}": pa.array(probs[:, k]) for k, name in enumerate(names)}
    else:
        columns["probs"] = pa.array([row[:count] for row, count in zip(probs, counts, strict=True)])
    if logits is not None:
        widths = counts if counts is not None else np.full(len(logits), logits.shape[1])
        columns["logits"] = pa.array([row[:width] for row, width in zip(logits, widths, strict=True)])
    return pa.table(columns)


def lightened(table: pa.Table) -> pa.Table:
    """Return predictions without what follows from the rest, or from the data: ids, winners, float64."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if name in ("id", "predicted", "confidence"):
            continue
        if pa.types.is_float64(column.type):
            column = column.cast(pa.float32())
        elif pa.types.is_list(column.type):
            column = column.cast(pa.list_(pa.float32()))
        columns[name] = column
    return pa.table(columns)


def prediction_tables(
    examples: Examples,
    classifier: Predictor,
    *,
    guarantees: bool = False,
    rows: int = _ROWS,
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.Table]:
    """Yield the predictions of so many rows at a time, so that a file of any length takes the memory of one of them.

    Those of images name, after the id, the file.
    """
    for start in range(0, len(examples), rows):
        part = examples.take(np.arange(start, min(start + rows, len(examples))))
        probs = classifier.probabilities(part, progress=progress)
        table = prediction_table(part, probs, label_names=classifier.label_names)
        if part.kind == "image":
            table = table.add_column(1, "image_from", part.table["image_from"])
        yield with_guarantees(table, probs, classifier) if guarantees else table


def with_guarantees(table: pa.Table, probs: NDArray[np.float64], classifier: Predictor) -> pa.Table:
    """Return predictions with `accepted` and `possible` (the prediction set), as far as the model knows them."""
    if classifier.beside.threshold is not None:
        table = table.append_column("accepted", pa.array(classifier.accepted(probs)))
    if classifier.beside.sets is not None:
        names = [[str(name) for name in row] for row in classifier.possible(probs)]
        table = table.append_column("possible", pa.array(names, pa.list_(pa.string())))
    return table


def read_predictions(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.int64], pa.Table]:
    """Return the probabilities, the gold labels and the whole table of predictions made anywhere.

    The columns say what they hold, nothing is guessed: `p_NAME` for each class (or a list, `probs`) are
    probabilities, a list in `logits` is scores before softmax. `label` is a class name, or an index into the
    list. Predictions as calmix writes them qualify.
    """
    table = read_table(path)
    names = [name.removeprefix("p_") for name in table.column_names if name.startswith("p_")]
    if "label" not in table.column_names:
        raise InputError(f"{path}: has no column 'label' to compare with (columns: {', '.join(table.column_names)})")
    if names:
        rows = np.stack([_numbers(table, f"p_{name}", path) for name in names], axis=1)
    elif "probs" in table.column_names or "logits" in table.column_names:
        rows = _lists(table, "probs" if "probs" in table.column_names else "logits", path)
    else:
        raise InputError(f"{path}: needs columns p_NAME for each class, or a list in 'probs' or 'logits'")
    if not names and "probs" not in table.column_names:
        try:
            rows = np.asarray(Temperature(1.0)(rows))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    names = names or [str(i) for i in range(rows.shape[1])]
    where = {name: i for i, name in enumerate(names)}
    labels = [str(value) for value in table["label"].to_pylist()]
    unknown = next((i for i, value in enumerate(labels) if value not in where), None)
    if unknown is not None:
        row = Origin(str(path), header=format_of(path)[0] in ("csv", "tsv")).row(unknown)
        raise InputError(f"{path}: {row}: label {shown(labels[unknown])} is not among {listed(names)}")
    return rows, np.array([where[value] for value in labels], dtype=np.int64), table


def _numbers(table: pa.Table, column: str, path: str | Path) -> NDArray[np.float64]:
    cells = table[column].to_pylist()
    try:
        return np.asarray(cells, dtype=np.float64)
    except (ValueError, TypeError):
        place = next(row for row, cell in enumerate(cells) if not _is_number(cell))
        cell, where = cells[place], Origin(str(path), header=format_of(path)[0] in ("csv", "tsv")).row(place)
        comma = isinstance(cell, str) and _is_number(cell.replace(",", ".", 1))
        raise InputError(
            f"{path}: column {column!r} holds something that is not a number, {shown(cell)} at {where}"
            f"{'; write a point in the place of the comma' if comma else ''}"
        ) from None


def _is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    return True


def _lists(table: pa.Table, column: str, path: str | Path) -> NDArray[np.float64]:
    """Return lists as rows; shorter ones (fewer choices) are filled with what means 'not there'."""
    values = table[column].to_pylist()
    try:
        lists = [json.loads(v) if isinstance(v, str) else list(v) for v in values]
        rows = np.full((len(lists), max(map(len, lists))), 0.0 if column == "probs" else -np.inf)
        for row, numbers in zip(rows, lists, strict=True):
            if not numbers:
                raise ValueError
            row[: len(numbers)] = numbers
    except (ValueError, TypeError):
        raise InputError(f"{path}: column {column!r} must hold a list of numbers in every row") from None
    return rows
