"""Readers read what they are given or refuse it: seeded changes of good inputs here, atheris in the slow lane."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def _fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "tools" / "fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = _fuzz()
# What stands in files that break readers.
PIECES = (b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b"\r", b'"', b",", b"{", b"]", b"null", b"NaN", b"1e999", b"-1")


def changed(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a few of them replaced, removed or doubled."""
    for _ in range(draw.randint(1, 4)):
        start = draw.randint(0, len(data))
        stop = min(len(data), start + draw.choice((0, 1, 2, 8, 64)))
        middle = draw.choice([*PIECES, data[start:stop] * 2, bytes([draw.randint(0, 255)])])
        data = data[:start] + middle + data[stop:]
    return data


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_a_reader_reads_or_refuses_what_was_changed(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    for seed in fuzz.TARGETS[name][2]():
        for data in (seed, *(changed(seed, draw) for _ in range(60))):
            error = fuzz.attempt(name, data, tmp_path)
            assert error is None, f"{data!r}: {type(error).__name__}: {error}"


@pytest.mark.slow
def test_atheris_finds_nothing_in_a_few_seconds(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--seconds", "5", "--out", str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(f"0 of {len(fuzz.TARGETS)} targets have a finding\n")
