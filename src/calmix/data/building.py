"""From a table, or Python lists, to `Examples`."""

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data.columns import Columns
from calmix.data.decoding import check_image, colour_file, grey_file
from calmix.data.examples import Examples
from calmix.data.images import image_cells, image_columns, image_key, read_image
from calmix.data.jsonlines import as_array
from calmix.data.keys import content_ids
from calmix.data.labels import Cells, choice_labels, class_labels, distinct_cells
from calmix.data.origin import Origin, listed
from calmix.data.texts import choice_cells, id_cells, text_cells
from calmix.data.votes import vote_targets
from calmix.errors import InputError

__all__ = ["examples_from_content", "examples_from_images", "examples_from_lists", "examples_from_table"]


def examples_from_table(
    table: pa.Table,
    columns: Columns,
    origin: Origin,
    *,
    label_names: Sequence[str] | None = None,
    may_be_missing: bool = False,
    spelt_alike: bool = False,
) -> Examples:
    """The examples in a table, every cell that matters checked."""
    if columns.image is not None:
        content = image_cells(table[columns.image], columns.image, origin)
    else:
        content = {"text": text_cells(table[columns.text], columns.text, origin)}
    if columns.text_b is not None:
        content["text_b"] = text_cells(table[columns.text_b], columns.text_b, origin)
    if columns.choices:
        content["choices"] = choice_cells(table, columns.choices, origin)
    return examples_from_content(
        content,
        table,
        columns,
        origin,
        label_names=label_names,
        may_be_missing=may_be_missing,
        spelt_alike=spelt_alike,
    )


def examples_from_content(
    content: dict[str, Any],
    table: pa.Table,
    columns: Columns,
    origin: Origin,
    *,
    label_names: Sequence[str] | None = None,
    may_be_missing: bool = False,
    spelt_alike: bool = False,
) -> Examples:
    """The examples with these columns of texts or images, the rest (ids, labels, votes) from a table.

    With `spelt_alike`, labels that differ from one of `label_names` in case or blanks alone are classes after those.
    """
    names = _checked_names(label_names, origin)
    if columns.id is None:
        ids = pa.chunked_array([pa.array(content_ids(pa.table(content)), pa.string())])
    else:
        ids = id_cells(table[columns.id], columns.id, origin)
    content = {"id": ids, **content}

    labels, found, targets = np.full(len(ids), -1, dtype=np.int64), names, None
    cells = None if columns.label is None else distinct_cells(table[columns.label], columns.label, origin)
    if columns.choices:
        found = _no_classes(columns, names, origin)
        if cells is not None:
            counts = Examples(pa.table(content), labels, ()).choice_counts
            assert counts is not None
            labels = choice_labels(cells, counts, origin, may_be_missing=may_be_missing)
    elif cells is not None:
        # Next to votes, the label column only tells the names.
        missing = may_be_missing or columns.votes is not None
        labels, found = class_labels(cells, origin, label_names=names, may_be_missing=missing, spelt_alike=spelt_alike)
    if columns.votes is not None:
        targets, found = vote_targets(
            table[columns.votes],
            columns.votes,
            origin,
            label_names=names,
            found_names=found,
            spelt_alike=spelt_alike,
        )
        labels = targets.argmax(axis=1).astype(np.int64)
    used = {columns.text, columns.text_b, *columns.choices, columns.label, columns.id, columns.votes, columns.image}
    others = _others(table, used, set(content))
    return Examples(pa.table({**content, **others}), labels, found, targets, origin.name)


def _others(table: pa.Table, used: set[str | None], reserved: set[str]) -> dict[str, pa.ChunkedArray]:
    """The columns that play no part; one whose name now means something else gets an underscore."""
    names = set(table.column_names) | reserved
    others = {}
    for name in table.column_names:
        if name in used:
            continue
        kept = name
        while kept in reserved or (kept != name and kept in names):
            kept += "_"
        names.add(kept)
        others[kept] = table[name]
    return others


def _checked_names(label_names: Sequence[str] | None, origin: Origin) -> tuple[str, ...]:
    names = tuple(label_names or ())
    if len(set(names)) < len(names):
        raise origin.error(f"the label names are not all different: {listed(names)}")
    return names


def _no_classes(columns: Columns, names: tuple[str, ...], origin: Origin) -> tuple[str, ...]:
    if names:
        raise origin.error(f"this is multiple choice, which has no label names, but they were given: {listed(names)}")
    if columns.votes is not None:
        raise origin.error("votes are for classes; with multiple choice they are not supported")
    return ()


def examples_from_lists(
    texts: Sequence[str],
    labels: Sequence[Hashable] | NDArray[Any] | None = None,
    *,
    text_b: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
) -> Examples:
    """Examples from Python sequences of the same length."""
    origin = Origin("texts")
    for name, values in (("text_b", text_b), ("labels", labels)):
        if values is not None and len(values) != len(texts):
            raise origin.error(f"{len(texts)} texts, but {len(values)} {name}")
    given = {"text": texts} if text_b is None else {"text": texts, "text_b": text_b}
    table = pa.table({name: as_array(list(values)) for name, values in given.items()})
    columns = Columns("text", None if text_b is None else "text_b", (), None, None, None)
    examples = examples_from_table(table, columns, origin, label_names=label_names)
    return examples if labels is None else _labelled(examples, labels, origin)


def examples_from_images(
    images: Sequence[str | Path | bytes | NDArray[np.uint8]],
    labels: Sequence[Hashable] | NDArray[Any] | None = None,
    *,
    label_names: Sequence[str] | None = None,
) -> Examples:
    """Examples from image files, their bytes, or pixels: uint8 [height, width] or [height, width, 3]."""
    origin = Origin("images")
    if labels is not None and len(labels) != len(images):
        raise origin.error(f"{len(images)} images, but {len(labels)} labels")
    if not len(images):
        raise origin.error("there are none")
    data, names = [], []
    for place, image in enumerate(images, start=1):
        names.append(os.path.abspath(image) if isinstance(image, str | Path) else f"images: number {place}")
        data.append(_image_file(image, names[-1]))
        check_image(data[-1], names[-1])
    content = image_columns(data, names, [image_key(each) for each in data])
    columns = Columns("", None, (), None, None, None)
    examples = examples_from_content(content, pa.table({}), columns, origin, label_names=label_names)
    return examples if labels is None else _labelled(examples, labels, origin)


def _image_file(image: Any, name: str) -> bytes:
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if isinstance(image, bytes):
        return image
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        raise InputError(
            f"{name}: is neither a path, bytes, nor uint8 [height, width] or [height, width, 3], but "
            f"{pixels.dtype} {list(pixels.shape)}"
        )
    return grey_file(pixels) if pixels.ndim == 2 else colour_file(pixels)


def _labelled(examples: Examples, labels: Sequence[Hashable] | NDArray[Any], origin: Origin) -> Examples:
    seen: dict[tuple[type, Hashable], int] = {}
    # Python takes True, 1 and 1.0 for the same key; the type keeps them apart.
    codes = [seen.setdefault((type(value), value), len(seen)) for value in labels]
    cells = Cells(np.array(codes, dtype=np.int64), [value for _, value in seen], "labels")
    indices, names = class_labels(cells, origin, label_names=examples.label_names)
    return Examples(examples.table, indices, names, source=origin.name)
