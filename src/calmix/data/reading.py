"""From a file, a folder of images or a hub data set to `Examples`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from calmix.data.building import examples_from_table
from calmix.data.columns import find_columns, with_usual
from calmix.data.examples import Examples
from calmix.data.files import COMPRESSIONS
from calmix.data.hub import is_hub_name, read_hub
from calmix.data.idx import find_idx, is_idx, read_idx
from calmix.data.imagefolders import IMAGE_ENDINGS, read_image_files, read_image_folder
from calmix.data.origin import Origin, check_no_address, neighbour
from calmix.data.remembering import remembered_columns
from calmix.data.tables import FORMATS, SPREADSHEETS, format_of, read_table
from calmix.errors import InputError

__all__ = ["check_there", "holds_table", "is_image", "names_hub", "read_ahead", "read_examples", "read_files"]

_ROLES = ("text", "text_b", "choices", "label", "id")


def read_examples(
    source: str | Path,
    *,
    text: str | None = None,
    text_b: str | None = None,
    choices: str | None = None,
    label: str | None = None,
    id: str | None = None,
    votes: str | None = None,
    label_names: Sequence[str] | None = None,
    labelled: bool | None = True,
    split: str = "train",
    several: str = "",
    usual: Mapping[str, str] | None = None,
    table: pa.Table | None = None,
    spelt_alike: bool = False,
) -> Examples:
    """The examples in a table on disk, or in a data set of the hub ("name", "org/name" or "org/name:config").

    Images are read from a folder that has a folder of them for each class, from a table with their bytes in a
    column called `image` or the like and no text, and from IDX files (see `read_image_folder` and `read_idx`); a
    single image, where no label is needed, from its file.

    Columns that are not named are found by their usual names. Anything that cannot be used raises
    `InputError`, which names the file, the row and the remedy; nothing is dropped but files in a folder of
    images that are not images by their names, with a warning.

    Args:
        source: a CSV, TSV, JSON Lines or Parquet file, compressed or not, a folder of images, a file or folder
            of IDX files, or the name of a hub data set.
        text: the column of the text. When it is given, `text_b` and `choices` are not looked for.
        text_b: the column of the second text of a pair.
        choices: the column of the lists of choices, or what its numbered columns are called ("ending").
        label: the column of the label; for multiple choice, the index of the right choice from 0.
        id: the column of ids. Without one they are made from the texts.
        votes: the column of label distributions, which then decide the labels.
        label_names: the only labels allowed, in the order of the class indices.
        labelled: True when every row must have a label, False to ignore labels, None to take those there are.
        split: which split of a hub data set, or of a folder that is divided into them; `dev` is called `validation`
            on the hub.
        several: what joins the labels of a row where a hub data set has lists of them; without it they are refused.
        usual: the columns to take for what is not named, where a table has them, by the names of the arguments: those
            that a model was trained on.
        table: the table in `source`, where it was read before.
        spelt_alike: take labels too that differ from one of `label_names` in case or blanks alone: they come after
            those.
    """
    check_no_address(source)
    name = os.fspath(source)
    given = {"text": text, "text_b": text_b, "choices": choices, "label": label, "id": id, "votes": votes}
    single = os.path.isfile(name) and is_image(name)
    if os.path.isdir(name) or is_idx(name) or single:
        if single and labelled:
            raise Origin(name).error("is a single image; give the folder it is in")
        _refuse_columns(name, given)
        if single:
            return read_image_files([name])
        try:
            images = find_idx(Path(name), split) if os.path.isdir(name) else Path(name)
            if images is not None:
                return read_idx(images, label_names=label_names, labelled=labelled)
            return read_image_folder(
                name, label_names=label_names, labelled=labelled, split=split, spelt_alike=spelt_alike
            )
        except OSError as error:
            raise Origin(name).error(f"cannot be read ({error.strerror})") from error
    if isinstance(source, str) and names_hub(source):
        table, origin = read_hub(source, "validation" if split == "dev" else split, several=several), Origin(source)
    else:
        table = read_table(name) if table is None else table
        origin = Origin(name, header=format_of(name)[0] in ("csv", "tsv"))
    columns = find_columns(table, origin, **with_usual(given, usual or {}, table.column_names), labelled=labelled)
    return examples_from_table(
        table,
        columns,
        origin,
        label_names=label_names,
        may_be_missing=labelled is None,
        spelt_alike=spelt_alike,
    )


def read_files(sources: Sequence[str], **options: Any) -> Examples:
    """The examples in one source, as `read_examples` reads it with these options, or in several image files."""
    if len(sources) == 1:
        return read_examples(sources[0], **options)
    for source in sources:
        if os.path.isdir(source) or not is_image(source):
            raise Origin(source).error("is no image file; give one table or folder alone, or image files only")
    _refuse_columns(sources[0], options)
    return read_image_files(sources)


def read_ahead(
    model: str, sources: Iterable[str], columns: Mapping[str, str | None], *, labelled: bool = True
) -> dict[str, pa.Table]:
    """The tables among sources, with the columns that a model needs: before it is loaded, which takes longer.

    None for a model of the hub, since what columns it remembers is in it.
    """
    found: dict[str, pa.Table] = {}
    given = dict.fromkeys((*_ROLES, "votes")) | {role: name for role, name in columns.items() if role in _ROLES}
    for source in sources if os.path.isdir(model) else ():
        if holds_table(source):
            table = found[source] = read_table(source)
            wanted = with_usual(given, remembered_columns(model), table.column_names)
            find_columns(table, Origin(source), **wanted, labelled=labelled)
    return found


def is_image(name: str) -> bool:
    """Return whether a file is called as images are."""
    return name.lower().endswith(IMAGE_ENDINGS)


def holds_table(source: str) -> bool:
    """Return whether `read_examples` reads this with `read_table`: no folder, no image or IDX file, no hub data set."""
    return not (os.path.isdir(source) or is_idx(source) or is_image(source) or names_hub(source))


def _refuse_columns(name: str, given: Mapping[str, Any]) -> None:
    """Refuse columns that were named, where there is no table."""
    for role in (*_ROLES, "votes"):
        if given.get(role) is not None:
            raise Origin(name).error(f"images in files have no columns: leave out --{role.replace('_', '-')}")


def check_there(*sources: str) -> None:
    """Refuse a file that is not there, before anything is loaded for it; a hub data set may be."""
    for source in sources:
        check_no_address(source)
        if not os.path.exists(source) and not names_hub(source):
            raise InputError(f"{source}: no such file{neighbour(source, Path.exists)}")


def names_hub(source: str) -> bool:
    """Return whether this is the name of a data set on the hub, and no file's, be that there or not."""
    endings = {*FORMATS, *COMPRESSIONS, *IMAGE_ENDINGS, *SPREADSHEETS, ".txt"}
    looks_like_a_file = Path(source).suffix.lower() in endings or os.path.exists(source)
    return not looks_like_a_file and is_hub_name(source)
