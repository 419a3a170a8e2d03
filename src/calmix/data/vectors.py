"""Pretrained word vectors from the text files of GloVe and word2vec: a word and its numbers a line."""

import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from calmix.data.files import open_bytes
from calmix.errors import InputError

__all__ = ["read_vectors", "vectors_file"]

# No vector of any use has a line longer than this.
_LONGEST = 1 << 17
_MOST_NUMBERS = 4096
# A zip whose content is a thousand times its size, beyond a gibibyte, was made to fill the memory.
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 1000


def vectors_file(path: str | Path) -> Path:
    """Return the file on disk that holds the vectors: of `glove.zip/glove.100d.txt`, the zip."""
    path = Path(path)
    for each in (path, *path.parents):
        if each.is_file():
            if each != path and each.suffix.lower() != ".zip":
                break
            return each
    raise InputError(f"{path}: no such file of word vectors")


def read_vectors(path: str | Path, words: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of those words that the file has one of; of a word that is there twice, the first.

    The file is text, compressed or not (.gz, .xz, .zst), or a zip with one file in it; of several, the one is named
    as in `glove.6B.zip/glove.6B.100d.txt`. It is read line by line, and only the words asked for are kept, so that
    memory does not depend on its size. A line that is no vector is an `InputError` with its number.
    """
    wanted = {word.encode(): word for word in words}
    found: dict[str, NDArray[np.float32]] = {}
    width = 0
    with _opened(path) as stream:
        number = 0
        while line := stream.readline(_LONGEST + 1):
            number += 1
            if len(line) > _LONGEST:
                raise InputError(f"{path}: line {number} is longer than {_LONGEST} bytes: these are no word vectors")
            if not line.strip():
                continue
            if number == 1 and len(line.split()) == 2:
                continue  # word2vec's header: how many, and how long
            if not width:
                width = _width(line, path, number)
            # A word may have spaces in it, numbers have none.
            parts = line.rstrip().rsplit(b" ", width)
            if len(parts) != width + 1:
                raise InputError(f"{path}: line {number} has {len(parts) - 1} numbers, the first {width}")
            word = wanted.get(parts[0])
            if word is None or word in found:
                continue
            try:
                vector = np.array(parts[1:], dtype=np.float32)
            except ValueError:
                raise InputError(f"{path}: line {number} holds something that is not a number") from None
            if not np.isfinite(vector).all():
                raise InputError(f"{path}: line {number} holds a number that is not finite")
            found[word] = vector
    if not width:
        raise InputError(f"{path}: holds no word vectors")
    return found


def _width(line: bytes, path: str | Path, number: int) -> int:
    """Return how many numbers the first vector has: all that follow its word."""
    width = len(line.split()) - 1
    if not 1 <= width <= _MOST_NUMBERS or b"\0" in line:
        raise InputError(f"{path}: line {number} is no word with its numbers: is this a text file of word vectors?")
    return width


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    file = vectors_file(path)
    if file.suffix.lower() != ".zip":
        with open_bytes(file) as stream:
            yield stream
        return
    inside = PurePosixPath(*Path(path).parts[len(file.parts) :]).as_posix()
    try:
        with zipfile.ZipFile(file) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            if inside != ".":
                members = [info for info in members if info.filename == inside]
            if len(members) != 1:
                names = ", ".join(info.filename for info in archive.infolist()[:8])
                what = (
                    f"has no file {inside!r}" if inside != "." else f"holds {'several files' if members else 'no file'}"
                )
                raise InputError(f"{file}: {what}: name one as in {file}/NAME (there are: {names})")
            info = members[0]
            if info.file_size > max(_BOMB_BYTES, _BOMB_RATIO * info.compress_size):
                raise InputError(f"{file}: expands to more than {_BOMB_RATIO} times its size; unpack it yourself")
            with archive.open(info) as stream:
                yield cast(BinaryIO, stream)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise InputError(f"{file}: cannot be unpacked ({error}); fetch it again, or unpack it yourself") from None
