"""IDX files, the format of MNIST and Fashion-MNIST, to `Examples`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data.building import examples_from_content
from calmix.data.columns import Columns
from calmix.data.decoding import MOST_PIXELS, grey_file
from calmix.data.examples import Examples
from calmix.data.files import open_bytes
from calmix.data.images import image_columns, image_key
from calmix.data.origin import Origin, listed
from calmix.data.splits import names_of_split
from calmix.errors import InputError

__all__ = ["find_idx", "is_idx", "read_idx"]

# "train-images-idx3-ubyte.gz"; some copies have a dot before "idx3".
_IMAGES = re.compile(r"(.*)images([-.])idx3-ubyte(\.gz|\.xz|\.zst)?")


def is_idx(path: str | Path) -> bool:
    """Whether a file is called as the images of an IDX data set are."""
    return _IMAGES.fullmatch(Path(path).name) is not None


def find_idx(folder: Path, split: str) -> Path | None:
    """The file with the images of a split ("t10k" is "test") in a folder of IDX files; None if it is no such folder."""
    found = sorted(name for name in os.listdir(folder) if is_idx(name))
    if not found:
        return None
    for name in found:
        if name.startswith(tuple(f"{prefix}-" for prefix in names_of_split(split))):
            return folder / name
    raise InputError(
        f"{folder}: no IDX file has the images of the split {split!r} (there are: {listed(found)}); name the one to "
        f"read, as in {folder / found[0]}"
    )


def read_idx(path: str | Path, *, label_names: Sequence[str] | None = None, labelled: bool | None = True) -> Examples:
    """The grey images of an IDX file with the labels of the file beside it (`…labels-idx1-ubyte`), all in memory.

    Args:
        path: the file of the images, `…images-idx3-ubyte`, compressed or not.
        label_names: the only labels allowed, in the order of the class indices.
        labelled: False to do without labels, None to take them where there is a file of them.
    """
    origin = Origin(os.fspath(path))
    pixels = _read(Path(path), 3)
    count, height, width = pixels.shape
    if not count:
        raise origin.error("there are no images in it")
    if not 0 < height * width <= MOST_PIXELS:
        raise origin.error(f"images of {width} × {height} pixels cannot be used")
    data = [grey_file(image) for image in pixels]
    names = [f"{origin.name}: image {row + 1}" for row in range(count)]
    columns, table = Columns("", None, (), None, None, None), pa.table({})
    beside = None if labelled is False else _labels_beside(Path(path), origin, required=labelled is True)
    if beside is not None:
        labels = _read(beside, 1)
        if len(labels) != count:
            raise origin.error(f"{count} images, but {len(labels)} labels in {beside}")
        columns, table = Columns("", None, (), "label", None, None), pa.table({"label": labels})
    content = image_columns(data, names, [image_key(image) for image in data])
    return examples_from_content(content, table, columns, origin, label_names=label_names)


def _labels_beside(path: Path, origin: Origin, *, required: bool) -> Path | None:
    match = _IMAGES.fullmatch(path.name)
    if match is None:
        raise origin.error("the images of an IDX data set are in a file called …images-idx3-ubyte")
    plain = f"{match[1]}labels{match[2]}idx1-ubyte"
    for ending in (match[3] or "", "", ".gz", ".xz", ".zst"):
        if (path.parent / f"{plain}{ending}").is_file():
            return path.parent / f"{plain}{ending}"
    if required:
        raise origin.error(f"the file of the labels, {plain}, is not beside it; put it there")
    return None


def _read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes."""
    with open_bytes(path) as stream:
        data = stream.read()
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, 8, dimensions]):
        raise InputError(f"{path}: this is not an IDX file of bytes with {dimensions} dimensions; fetch it again")
    shape = [int(size) for size in np.frombuffer(data, dtype=">u4", count=dimensions, offset=4)]
    expected = int(np.prod(shape, dtype=object))
    if len(data) - start != expected:
        raise InputError(f"{path}: {len(data) - start} bytes where its header tells of {expected}; fetch it again")
    if not expected:
        # Of nothing, the other sizes may be more than an array can have.
        shape = [size if size < MOST_PIXELS else 0 for size in shape]
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
