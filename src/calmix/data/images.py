"""The columns of examples that are images, and their pixels when they are asked for."""

import os
import stat
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calmix.data.decoding import MOST_BYTES, check_image, decode_image, is_grey
from calmix.data.origin import Origin, shown
from calmix.errors import InputError

__all__ = ["Images", "holds_images", "image_cells", "image_columns", "image_key", "read_image"]


class Images:
    """The decoded images of examples, each decoded when it is asked for: `images[row]`.

    An image is uint8 RGB [height, width, 3], or [height, width] when it comes from an IDX file; they need not
    be of one size. One that cannot be decoded raises `InputError` with its name.
    """

    def __init__(self, table: pa.Table) -> None:
        self._data, self._from = table["image"], table["image_from"]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        name = self._from[row].as_py()
        return decode_image(self.encoded(row), name)

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return (self[row] for row in range(len(self)))

    @property
    def are_grey(self) -> bool:
        """Whether all images are grey, as those of IDX files are: [height, width]."""
        return all(cell.is_valid and is_grey(cell.as_py()) for cell in self._data)

    def size(self, row: int) -> tuple[int, int]:
        """The width and height that the header of a row's image tells."""
        return check_image(self.encoded(row), self._from[row].as_py())

    def encoded(self, row: int) -> bytes:
        """The bytes of the image file of a row."""
        data = self._data[row].as_py()
        return read_image(Path(self._from[row].as_py())) if data is None else bytes(data)


def read_image(path: Path) -> bytes:
    """The bytes of an image file; `InputError` unless it is a plain file of a reasonable size."""
    try:
        # A named pipe would be waited for without end.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise InputError(f"{path}: this is not a plain file; take it out")
            if about.st_size > MOST_BYTES:
                raise InputError(f"{path}: more than {MOST_BYTES >> 20} MiB: too large; scale the image down")
            return file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def image_key(data: bytes) -> str:
    """32 hex digits that two image files share if and only if they have the same bytes."""
    return blake2b(data, digest_size=16).hexdigest()


def holds_images(kind: pa.DataType) -> bool:
    """Whether a column of this type may hold encoded images: bytes, or a struct that has a field of `bytes`."""
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _is_bytes(field.type) for field in kind)
    return _is_bytes(kind)


def image_columns(data: Sequence[bytes | None], names: Sequence[str], keys: Sequence[str]) -> dict[str, pa.Array]:
    """The columns of `Examples` for images.

    Args:
        data: the bytes of each image file; None where they are read from the file when needed.
        names: the path of that file, or else what messages call the image.
        keys: the `image_key` of each image.
    """
    return {
        "image": pa.array(data, pa.large_binary()),
        "image_from": pa.array(names, pa.string()),
        "image_key": pa.array(keys, pa.string()),
    }


def image_cells(column: pa.ChunkedArray, name: str, origin: Origin) -> dict[str, pa.Array]:
    """The columns of `Examples` for a column of encoded images; the header of every image is checked."""
    if not holds_images(column.type):
        raise origin.error(
            f"column {shown(name)} holds {shown(str(column.type))}, not images; they are bytes, or a struct with bytes"
        )
    paths: list[str | None] = [None] * len(column)
    if pa.types.is_struct(column.type):
        fields = [field.name for field in column.type]
        if "path" in fields and pa.types.is_string(column.type.field("path").type):
            paths = pc.struct_field(column, "path").to_pylist()
        column = pc.struct_field(column, "bytes")
    names, keys = [], []
    for row, cell in enumerate(column):
        data = cell.as_py()
        path = paths[row]
        names.append(f"{origin.name}: {origin.row(row)}" + (f" ({shown(path)})" if path else ""))
        if data is None:
            # A path in a table is not followed: whoever wrote the table would choose which files are read.
            raise InputError(f"{names[-1]}: no bytes of an image in column {shown(name)}; embed the image or drop it")
        check_image(data, names[-1])
        keys.append(image_key(data))
    return {**image_columns([], names, keys), "image": column.cast(pa.large_binary())}


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
