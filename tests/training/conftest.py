"""Runs of a tiny model that take less than a second, and what to compare of two of them."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from calmix.training import Run, train

Quick = Callable[..., Run]


@pytest.fixture(scope="session")
def calm(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without dropout: its training is arithmetic alone."""
    return without_dropout(shutil.copytree(checkpoint("bert"), tmp_path_factory.mktemp("calm") / "bert"))


@pytest.fixture(scope="session")
def calm_anew(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a model that has no head for the labels of tiny data."""
    return without_dropout(shutil.copytree(checkpoint("bert", classes=4), tmp_path_factory.mktemp("calm") / "anew"))


def without_dropout(folder: Path) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def quick(checkpoint: Callable[..., Path], tmp_path: Path) -> Quick:
    """Return `quick(out, **changes)`: a run of two epochs of three steps, with what is asked for changed.

    The head begins as it is: with `head="fitted"` a run might keep the network from before its first step, and two
    runs that should be the same would be, whatever their steps did.
    """

    def run(out: str | None = "run", **changes: Any) -> Run:
        options: dict[str, Any] = {
            "train": tiny.examples(24),
            "model": checkpoint("bert"),
            "dev": tiny.examples(12, seed=1),
            "head": "random",
            "epochs": 2,
            "batch_size": 8,
            "lr": 1e-2,
            "seed": 3,
            "out": None if out is None else tmp_path / out,
        }
        options |= changes
        return train(options.pop("train"), **options)

    return run


@pytest.fixture
def anew(quick: Quick, checkpoint: Callable[..., Path]) -> Quick:
    """Return `anew(out, **changes)`: such a run of a model without a head for these labels, to which one is fitted."""

    def run(out: str | None = "run", **changes: Any) -> Run:
        return quick(out, **{"model": checkpoint("bert", classes=4), "head": "fitted"} | changes)

    return run


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told, and a checkpoint may be due, after every step."""
    monkeypatch.setattr("calmix.training.loop._POLL", 0.0)


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Four processors, of which this process may use one; nobody chose how many threads torch starts: it has four."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "system" / "sys/fs/cgroup/cpu.max"
    file.parent.mkdir(parents=True)
    file.write_text("100000 100000")
    monkeypatch.setattr("calmix.processors._ROOT", tmp_path / "system")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def outcome() -> Callable[[Path], dict[str, Any]]:
    """Return `outcome(folder)`: all that a run came to, except how long it took."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(inner) for key, inner in value.items() if key != "seconds"}
        return [timeless(inner) for inner in value] if isinstance(value, list) else value

    def found(folder: Path) -> dict[str, Any]:
        everything: dict[str, Any] = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            name = str(path.relative_to(folder))
            if path.suffix == ".jsonl":
                everything[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
            elif path.name == "metrics.json":
                everything[name] = timeless(json.loads(path.read_text()))
            else:
                everything[name] = path.read_bytes()
        return everything

    return found


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Return `tree(folder)`: every file and folder below, with the content of the files."""

    def found(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}

    return found
