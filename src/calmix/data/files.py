"""Files: opened whatever their compression, and written whole or not at all."""

import io
import json
import lzma
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import pyarrow as pa

from calmix.errors import InputError

__all__ = [
    "COMPRESSIONS",
    "atomic_path",
    "compressed",
    "is_left_over",
    "most_bytes",
    "naming",
    "open_bytes",
    "sync",
    "write_json",
    "write_text",
]

COMPRESSIONS = (".gz", ".xz", ".zst")
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_BUFFER = 1 << 20
_TEMPORARY = ".calmix-"
# A text file that inflates more than a thousandfold beyond a gibibyte was made to fill the memory.
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 1000


def most_bytes(path: Path) -> int:
    """Return how much a file may expand to before it is taken for one that was made to fill the memory."""
    return max(_BOMB_BYTES, _BOMB_RATIO * path.stat().st_size)


class _Decompressed(io.RawIOBase):
    """The bytes behind a decompressor; damage and bombs become `InputError`."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path = stream, path
        self._most = most_bytes(path)
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (EOFError, OSError, lzma.LZMAError) as error:
            cut = isinstance(error, EOFError) or "truncated" in str(error).lower()
            what = "the file is cut short" if cut else f"this is not valid {self._path.suffix} data"
            raise InputError(f"{self._path}: {what}; fetch or compress it again") from error
        self._count += len(data)
        if self._count > self._most:
            raise InputError(
                f"{self._path}: expands to more than {_BOMB_RATIO} times its size; "
                "decompress it yourself if you trust it"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def open_bytes(path: str | Path) -> BinaryIO:
    """The content of a file as a binary stream, decompressed if it ends in .gz, .xz or .zst."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: this is a folder; give a file")
    try:
        suffix = path.suffix.lower()
        if suffix == ".xz":
            stream: Any = lzma.open(path)  # noqa: SIM115 (closed with the stream returned)
        elif suffix in _CODECS:
            stream = pa.CompressedInputStream(pa.OSFile(str(path)), _CODECS[suffix])
        else:
            return path.open("rb")
        return io.BufferedReader(_Decompressed(stream, path), _BUFFER)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or 'unknown reason'})") from error


@contextmanager
def compressed(path: str | Path, suffix: str) -> Iterator[Any]:
    """A binary stream that writes to `path`, compressed as `suffix` says (".gz", ".xz", ".zst", or "")."""
    if suffix == ".xz":
        with lzma.open(path, "wb") as stream:
            yield stream
    elif suffix in _CODECS:
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), _CODECS[suffix]) as stream:
            yield stream
    else:
        with open(path, "wb") as file:
            yield file


def sync(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, on disk before anything else is done."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`, with its suffix, that takes its place once the block has succeeded.

    The bytes are on disk before the rename, so that after a crash there is the old file or the new one,
    never a part of either. When the block fails, the temporary file is removed; one that a killed process left
    is removed by the next that writes the same file. Missing folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same for the same file, however long its name is; other machines' processes are none of ours.
    ours = f"{_TEMPORARY}{crc32(f'{socket.gethostname()}/{path.name}'.encode()):08x}-"
    for left in path.parent.glob(f"{ours}*"):
        owner = left.name.removeprefix(ours).split(".")[0]
        if owner.isdigit() and not _is_running(int(owner)):
            left.unlink(missing_ok=True)
    temporary = path.parent / f"{ours}{threading.get_native_id()}{path.suffix}"
    try:
        with naming(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # not every system can sync a folder
        sync(path.parent)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have what the system refuses inside the block be an `OSError` that names the file, whichever library met it.

    The name of a temporary file, which means nothing to anybody, is replaced too.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or not (error.filename is None or is_left_over(Path(str(error.filename)))):
            raise
        number = error.errno
        cause: Exception = error
    except Exception as error:
        # safetensors has an error of its own for everything, with the system's number in its words.
        found = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
        if found is None:
            raise
        number, cause = int(found[1]), error
    else:
        return
    raise OSError(number, os.strerror(number), str(path)) from cause


def is_left_over(path: Path) -> bool:
    """Return whether a file is one that `atomic_path` was writing to, by its name."""
    return path.name.startswith(_TEMPORARY)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, whole or not at all; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
