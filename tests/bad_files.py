"""What makes broken and hostile files: tables, checkpoints, images, vectors, runs and studies with something wrong."""

import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

Made = bytes | Callable[[Path, Path], None]
"""The bytes of a file; or what makes it, given where it goes and the folder of the tiny model."""


def rows(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def many(n: int = 20) -> list[str]:
    return [f"text number {i},{'yn'[i % 2]}" for i in range(n)]


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def doubled() -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["text", "text", "label"])
    pa.parquet.write_table(table, sink)
    return sink.getvalue()


def link(target: str) -> Made:
    return lambda path, _model: os.symlink(target, path)


def folder(path: Path, _model: Path) -> None:
    path.mkdir()


def checkpoint(change: Callable[[Path], None] | None = None, **config: Any) -> Made:
    """Return what makes a copy of the tiny model with its config changed (None takes a key out), and then more."""

    def make(path: Path, model: Path) -> None:
        shutil.copytree(model, path)
        if config:
            values = json.loads((path / "config.json").read_text()) | config
            kept = {key: value for key, value in values.items() if value is not None}
            (path / "config.json").write_text(json.dumps(kept))
        if change is not None:
            change(path)

    return make


def put(name: str, content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / name).write_bytes(content)

    return change


def cut(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: int(share * len(content))])

    return change


def drop(*names: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return change


def pickled(path: Path) -> None:
    (path / "model.safetensors").unlink()
    # Whoever unpickles it runs it.
    (path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")


def weights(**change: Any) -> Callable[[Path], None]:
    """Return what gives the tiny model's weights another header."""

    def apply(path: Path) -> None:
        file = path / "model.safetensors"
        content = file.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        name = "classifier.weight"
        header[name] |= change
        told = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(told)) + told + content[8 + size :])

    return apply


def png(width: int, height: int, *, cut_at: int | None = None) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * min(1000, (3 * width + 1) * height)))
    return (b"\x89PNG\r\n\x1a\n" + size + pixels + chunk(b"IEND", b""))[:cut_at]


def idx(magic: int, *sizes: int, body: bytes = b"") -> bytes:
    return struct.pack(f">I{len(sizes)}I", magic, *sizes) + body


def zipped(*names: str, content: bytes = b"good 0.1 0.2\n") -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return sink.getvalue()


def run_of(changes: Mapping[str, bytes | None] = {}) -> Made:
    """Return what makes a copy of the finished run with some files changed; None takes one out."""

    def make(path: Path, model: Path) -> None:
        shutil.copytree(model.parent / "run", path)
        for name, content in changes.items():
            if content is None:
                (path / name).unlink()
            else:
                (path / name).write_bytes(content)

    return make


STUDY = '[task.t]\ntrain = "train"\ntest = "train"\n[training]\nepochs = 1\n[[method]]\nrecipe = "erm"\n'
HEAD = 'models = ["MODEL"]\n'


def study(old: str = "", new: str = "", head: str = "") -> dict[str, Made]:
    """Return the files of a study in which something was replaced."""
    assert old in STUDY
    text = head + STUDY.replace(old, new, 1)

    def make(path: Path, model: Path) -> None:
        path.write_text(HEAD.replace("MODEL", str(model)) + text)

    return {"study.toml": make, "train.csv": rows("text,label", *many())}
