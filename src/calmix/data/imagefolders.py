"""Folders of images, one folder per class, to `Examples`."""

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from calmix.data.building import examples_from_content
from calmix.data.columns import Columns
from calmix.data.decoding import check_image
from calmix.data.examples import Examples
from calmix.data.images import image_columns, image_key, read_image
from calmix.data.origin import Origin, listed, shown
from calmix.data.splits import names_of_split
from calmix.errors import CalmixWarning, InputError

__all__ = ["IMAGE_ENDINGS", "read_image_files", "read_image_folder"]

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif")
_SPLITS = ("train", "test", *names_of_split("dev"))
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def read_image_folder(
    folder: str | Path,
    *,
    label_names: Sequence[str] | None = None,
    labelled: bool | None = True,
    split: str = "train",
    spelt_alike: bool = False,
) -> Examples:
    """The images below a folder, labelled by the folder they are in: `folder/<class>/*.png` (or deeper).

    When the folder is divided into `train`, `test` and the like, the one called `split` is read. The files stay
    where they are: their headers are checked now, their pixels read when needed. Hidden files and folders, and files
    with other endings than those of images, are left out with a `CalmixWarning`. A link may lead to a file inside
    the folder only.

    Args:
        folder: the folder of the classes, or of the splits.
        label_names: the only classes allowed, in the order of their indices.
        labelled: True when every image must be in the folder of a class, False to ignore the classes, None to
            take those there are.
        split: which split to read, in a folder that is divided into splits.
        spelt_alike: take classes too that differ from one of `label_names` in case or blanks alone, after those.
    """
    origin = Origin(os.fspath(folder))
    within = Path(folder)
    top = _split_folder(within, split, origin)
    images, others = _walk(top, within.resolve(), origin)
    if not images:
        raise origin.error(
            "this is a folder without images; give a file, or a folder with a folder of images for each class"
        )
    if others:
        warnings.warn(
            f"{origin.name}: {len(others)} files or folders are left out, hidden or not images by their names: "
            f"{listed([path.relative_to(top).as_posix() for path in others], limit=5)}",
            CalmixWarning,
            stacklevel=3,
        )
    columns = Columns("", None, (), None, None, None)
    table = pa.table({"label": pa.array([_class_of(path, top, labelled) for path in images], pa.string())})
    if labelled is not False:
        _check_classes(top, images, labelled)
        columns = Columns("", None, (), "label", None, None)
    content = image_columns([None] * len(images), [os.path.abspath(path) for path in images], _keys(images))
    return examples_from_content(
        content,
        table,
        columns,
        origin,
        label_names=label_names,
        may_be_missing=labelled is None,
        spelt_alike=spelt_alike,
    )


def read_image_files(files: Sequence[str | Path]) -> Examples:
    """The images in files that are named one by one, without labels."""
    origin = Origin(os.fspath(files[0]) if len(files) == 1 else f"{len(files):,} images")
    for file in files:
        if _UNPRINTABLE.search(str(file)):
            raise InputError(f"the name {shown(str(file))} has characters that cannot be printed; rename it")
    content = image_columns([None] * len(files), [os.path.abspath(f) for f in files], _keys([Path(f) for f in files]))
    return examples_from_content(content, pa.table({}), Columns("", None, (), None, None, None), origin)


def _split_folder(folder: Path, split: str, origin: Origin) -> Path:
    """The folder of a split, or the folder itself where it is not divided into splits."""
    inside = [
        entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
    ]
    # Classes may have such names too ("train" next to "car"), or hold the images themselves.
    divided = inside and all(
        name in _SPLITS and any(entry.is_dir() for entry in os.scandir(folder / name)) for name in inside
    )
    if not divided:
        return folder
    for name in names_of_split(split):
        if name in inside:
            return folder / name
    inside.sort()
    raise origin.error(
        f"there is no folder {shown(split)} in it (there are: {listed(inside)}); name the one to read, as in "
        f"{folder / inside[0]}"
    )


def _walk(top: Path, root: Path, origin: Origin) -> tuple[list[Path], list[Path]]:
    """The files below a folder that are images by their names, in order, and what is left out."""
    images: list[Path] = []
    others: list[Path] = []

    def refuse(error: OSError) -> None:
        raise origin.error(f"the folder {shown(error.filename)} cannot be read ({error.strerror})") from error

    for place, folders, files in os.walk(top, onerror=refuse):
        others += [Path(place) / name for name in sorted(folders) if name[0] == "."]
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in (*folders, *files):
            if _UNPRINTABLE.search(name):
                raise origin.error(f"the name {shown(name)} has characters that cannot be printed; rename it")
        for name in folders:
            if (Path(place) / name).is_symlink():
                raise InputError(f"{Path(place) / name}: links to folders are not followed; put the folder itself here")
        for name in sorted(files):
            path = Path(place) / name
            if path.suffix.lower() not in IMAGE_ENDINGS or name[0] == ".":
                others.append(path)
                continue
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise InputError(f"{path}: is a link that leads out of the folder {root}; put the file itself here")
            images.append(path)
    return images, others


def _class_of(path: Path, top: Path, labelled: bool | None) -> str | None:
    parts = path.relative_to(top).parts
    if len(parts) > 1:
        return parts[0]
    if labelled:
        raise InputError(f"{path}: is in no folder of a class; move it into one")
    return None


def _check_classes(top: Path, images: list[Path], labelled: bool | None) -> None:
    full = {_class_of(path, top, labelled) for path in images}
    for entry in sorted(os.scandir(top), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name[0] != "." and entry.name not in full:
            raise InputError(f"{entry.path}: there are no images in this folder; fill it or take it out")


def _keys(images: list[Path]) -> list[str]:
    keys, wrong = [], []
    for path in images:
        try:
            data = read_image(path)
            check_image(data, str(path))
        except InputError as error:
            wrong.append(error)
            continue
        keys.append(image_key(data))
    if wrong:
        more = f" (and {len(wrong) - 1} more files cannot be used)" if len(wrong) > 1 else ""
        raise InputError(f"{wrong[0]}{more}") from wrong[0]
    return keys
