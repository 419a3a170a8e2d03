"""The command line in this process: what it prints, and with which code it ends."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tiny

from calmix.data import Examples, write_table


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def calmix(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Return `calmix("train", …)`: run a command and return how it ended."""
    from calmix.cli.main import main

    def run(*words: Any) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Ended(stop.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the command runs in."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def written(examples: Examples, path: Path) -> Path:
    labels = [examples.label_names[k] for k in examples.labels] if examples.label_names else examples.labels.tolist()
    write_table(examples.table.append_column("label", pa.array(labels)), path)
    return path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of tiny data: train, dev and test, pairs, choices, and texts without labels."""
    folder = tmp_path_factory.mktemp("files")
    found = {n: written(tiny.examples(30, seed=i), folder / f"{n}.csv") for i, n in enumerate(("train", "dev", "test"))}
    found["pairs"] = written(tiny.examples(30, kind="pair"), folder / "pairs.csv")
    found["choices"] = written(tiny.examples(30, kind="choices"), folder / "choices.jsonl")
    found["texts"] = folder / "texts.csv"
    found["texts"].write_text("text,topic\nthe cat saw rain,a\nbread,b\nmy old dog liked snow,a\n")
    return found


@pytest.fixture(scope="session")
def trained(files: dict[str, Path], checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with a guarantee: not to be written to."""
    from calmix.training import train

    out = tmp_path_factory.mktemp("trained") / "run"
    train(files["train"], dev=files["dev"], model=str(checkpoint("bert")), out=out, lr=1e-2, guarantee=0.3, epochs=2)
    return out


@dataclass(frozen=True)
class Odd:
    file: Path
    run: Path


@pytest.fixture(scope="session")
def odd(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """A table whose columns have unusual names, and a run in which they were named: not to be written to."""
    from calmix.training import train

    folder = tmp_path_factory.mktemp("odd")
    examples = tiny.examples(30)
    labels = [examples.label_names[k] for k in examples.labels]
    keys = [f"k{row}" for row in range(len(examples))]
    write_table(pa.table({"key": keys, "Body (raw)": examples.table["text"], "Queue": labels}), folder / "odd.csv")
    names = {"text": "Body (raw)", "label": "queue", "id": "KEY"}
    train(folder / "odd.csv", model=str(checkpoint("bert")), out=folder / "run", epochs=1, folds=0, **names)
    return Odd(folder / "odd.csv", folder / "run")


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Return `tree(folder)`: every file and folder below, with the content of the files."""

    def found(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}

    return found
