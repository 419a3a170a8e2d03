"""A run's folder: what was asked for, whether it may be written to, and the lock that keeps others out."""

import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from calmix._version import __version__
from calmix.data import write_text
from calmix.data.files import is_left_over
from calmix.errors import InputError
from calmix.training.differing import difference

__all__ = [
    "PART",
    "RECORDED",
    "RUN",
    "TOLD",
    "Busy",
    "FinishedRun",
    "abandon",
    "begin_run",
    "claim_empty",
    "command_line",
    "config_hash",
    "file_hash",
    "find_run",
    "is_finished",
    "is_untidy",
    "locked",
    "read_run",
    "tidy",
    "to_toml",
    "versions",
]

_FINISHED = "metrics.json"
RUN = "run.toml"
"""Where a run says what it is."""
_LOCK = ".lock"
PART = ".part"
"""A folder for what is not complete yet."""
RECORDED = "dynamics.parquet"
"""What a map has recorded so far; the finished map has it all."""
TOLD = "notes.json"
"""What was noted while a map was trained; the finished map's figures have it."""
# How often a folder is made again that somebody else removes, empty, while we are about to lock it.
_TRIES = 5


class Busy(InputError):
    """A folder that another command is writing to right now."""


class FinishedRun(InputError):
    """A run that is asked for again, with its figures already there."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder

    def __reduce__(self) -> Any:  # it travels between processes
        return FinishedRun, (str(self), self.folder)


def find_run(out: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what was decided (precision, threads) when the unfinished run in `out` began; None for a new run.

    A run goes on as it was begun. A folder that holds anything but this run, unfinished, is refused.
    """
    if not (out / RUN).is_file():
        _refuse_occupied(out)
        return None
    found = read_run(out)
    if found.get("hash") != config_hash(config):
        changed = difference(found.get("config", {}), _plain(config))
        raise InputError(f"{out}: holds a different run ({changed}); give another --out or remove it")
    if is_finished(out):
        tidy(out)
        raise FinishedRun(f"{out}: holds this very run, finished; its figures are in {out / _FINISHED}", out)
    return dict(found["decided"])


def begin_run(out: Path, config: Mapping[str, Any], decided: Mapping[str, Any]) -> None:
    """Write down what a new run is and what was decided for it."""
    body = {
        "calmix": __version__,
        "hash": config_hash(config),
        "command": command_line(),
        "config": _plain(config),
        "decided": dict(decided),
        "versions": versions(),
    }
    write_text(out / RUN, to_toml(body))


def abandon(out: Path) -> None:
    """Take back the beginning of a run that failed before anything of it was worth keeping."""
    others = [p for p in out.iterdir() if p.name not in (RUN, _LOCK, "checkpoints")]
    # What was learnt about the memory there is, is worth keeping.
    learnt = (out / RUN).is_file() and "parts" in read_run(out).get("decided", {})
    if not others and not learnt and not any((out / "checkpoints").rglob("step-*")):
        (out / RUN).unlink(missing_ok=True)
        shutil.rmtree(out / "checkpoints", ignore_errors=True)


def tidy(out: Path) -> None:
    """Remove from a finished run what it no longer needs, should it have been killed before it did so itself."""
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    for name in (RECORDED, TOLD):
        (out / name).unlink(missing_ok=True)


def is_untidy(out: Path) -> bool:
    """Return whether a finished run holds anything that `tidy`, or letting go of its lock, would remove."""
    return any((out / name).exists() for name in ("checkpoints", RECORDED, TOLD, _LOCK))


def is_finished(out: Path) -> bool:
    """Return whether the run in this folder is complete: its figures are written last."""
    return (out / _FINISHED).is_file()


@contextmanager
def claim_empty(out: Path) -> Iterator[None]:
    """Hold a folder that must be new or empty while something is written to it."""
    with locked(out):
        _refuse_occupied(out)
        yield


def _refuse_occupied(out: Path) -> None:
    found = [p for p in out.iterdir() if p.name != _LOCK]
    # What a command was writing when it was killed, before there was anything else, is nobody's.
    if not all(p.name == PART or is_left_over(p) for p in found):
        model = any((out / name).exists() for name in ("config.json", "member-1"))
        held = "holds a run already" if (out / RUN).is_file() else "is not empty and holds no run of ours"
        held = "holds a model already" if model else held
        raise InputError(f"{out}: {held}; give another --out")
    for left in found:
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a folder, made if need be, against a second command; removed again if nothing was written there."""
    made: list[Path] = []
    try:
        try:
            if out.exists() and not out.is_dir():
                raise InputError(f"{out}: is a file; --out must be a folder that is new or empty")
            made += [p for p in (out, *out.parents) if not p.exists()]
            handle = _opened(out)
        except OSError as error:
            raise InputError(f"{out}: cannot be written to ({error.strerror}); give another --out") from None
        try:
            _hold(out, handle)
            try:
                yield
            finally:
                (out / _LOCK).unlink(missing_ok=True)
        finally:
            os.close(handle)
    finally:
        _remove_empty(made)


def _opened(out: Path) -> int:
    """Return the open lock file of a folder, made if need be."""
    for turn in range(_TRIES):
        try:
            out.mkdir(parents=True, exist_ok=True)
            return os.open(out / _LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # whoever held it has just let go, and removed what was empty
            if turn == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _hold(out: Path, handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed the file between our opening and our locking it.
        if os.stat(out / _LOCK).st_ino != os.fstat(handle).st_ino:
            raise FileNotFoundError
    except OSError:
        raise Busy(f"{out}: another calmix command is writing to it right now") from None


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders from the inside out, up to the first that something is in."""
    for folder in folders:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the hash of everything that determines a run: its options, its data, its model, our version."""
    text = json.dumps({"calmix": __version__, **_plain(config)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of what the result depends on, and the GPU it is made with."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    found |= {name: _version(name) for name in ("torch", "transformers", "tokenizers", "accelerate", "numpy")}
    torch = sys.modules.get("torch")  # who trains has it; who reads a folder need not wait for it
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def command_line() -> str | None:
    """Return the command this process was started with, as one would type it; None where calmix was only imported."""
    program = Path(sys.argv[0])
    ours = program.name == "calmix" or program.parts[-2:] == ("calmix", "__main__.py")
    return shlex.join(["calmix", *sys.argv[1:]]) if ours else None


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Return nested dictionaries of plain values as TOML; `None` is left out, as TOML has none."""
    lines = [f"{_key(k)} = {_value(v)}" for k, v in values.items() if not isinstance(v, Mapping) and v is not None]
    for name, table in values.items():
        if isinstance(table, Mapping):
            path = f"{prefix}{_key(name)}"
            lines += ["", f"[{path}]", to_toml(table, f"{path}.").rstrip("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def _key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's too, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    if isinstance(value, Mapping):  # in a list: elsewhere it is a table of its own
        return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items() if v is not None)}}}"
    if isinstance(value, str):
        return _quoted(value)
    return json.dumps(value)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as it will be when read back: through JSON, without what is None."""
    text = json.dumps(config, default=str)
    return {k: v for k, v in json.loads(text).items() if v is not None}


def read_run(out: Path) -> dict[str, Any]:
    """Return what a run folder says the run is: its config, what was decided, versions."""
    path = out / RUN
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is damaged ({error}); give another --out") from None
    for name in ("config", "decided"):
        if not isinstance(found.get(name, {}), dict):
            raise InputError(f"{path}: is damaged ({name} is no table); give another --out")
    return found
