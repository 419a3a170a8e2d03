"""Models and data sets by their hub names, from a hub on this machine."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tiny
from fakehub import FakeHub, serving
from pyarrow import parquet
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

NOWHERE = "http://127.0.0.1:9"
TRAINING = ["--recipe", "erm", "--epochs", "1", "--no-report"]


@pytest.fixture(scope="module")
def hub(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub with a tiny model, one whose weights are pickled, and texts in two splits."""
    folder = tmp_path_factory.mktemp("hub")
    pickled = folder / "pickled"
    shutil.copytree(checkpoint("bert"), pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    for seed, split in enumerate(("train", "test")):
        path = folder / "texts" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        examples = tiny.examples(30, seed=seed)
        labels = pa.array([examples.label_names[k] for k in examples.labels])
        parquet.write_table(examples.table.select(["text"]).append_column("label", labels), path)
    models = {"someone/tiny": checkpoint("bert"), "someone/pickled": pickled}
    with serving(FakeHub(models, {"someone/texts": folder / "texts"})) as served:
        yield served


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def calmix(hub: FakeHub, tmp_path: Path) -> Command:
    """Return `calmix("train", …, endpoint=…)`: the command in a process of its own, with an empty cache at first."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}

    def run(*words: Any, endpoint: str = hub.endpoint) -> subprocess.CompletedProcess[str]:
        hub.asked.clear()
        return subprocess.run(
            [sys.executable, "-m", "calmix", *map(str, words)],
            cwd=tmp_path,
            env={**others, "HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def told(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what we say, without the bars of the library that reads data sets."""
    return [line for line in ended.stderr.splitlines() if line.startswith("calmix:")]


def test_what_was_fetched_once_needs_no_hub_the_next_time(calmix: Command, hub: FakeHub, tmp_path: Path) -> None:
    words = ["train", "someone/texts", "--model", "someone/tiny", *TRAINING]
    ended = calmix(*words, "--out", "run")
    assert ended.returncode == 0, ended.stderr
    assert any(line.startswith("GET") and line.endswith("model.safetensors") for line in hub.asked)
    began = time.monotonic()
    ended = calmix(*words, "--out", "again", endpoint=NOWHERE)
    assert ended.returncode == 0, ended.stderr
    # The libraries would try to reach a hub for longer than that each time.
    assert "Retrying" not in ended.stderr
    assert time.monotonic() - began < 120
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "again"))
    assert all((one[name] == other[name]).all() for name in one)


def test_pickled_weights_are_refused_with_how_to_convert_them(calmix: Command, hub: FakeHub, tmp_path: Path) -> None:
    ended = calmix("train", "someone/texts", "--model", "someone/pickled", "--out", "run")
    assert ended.returncode == 2
    assert len(told(ended)) == 1
    kind = "BertForSequenceClassification"
    assert f'python -c "from transformers import {kind} as A, AutoTokenizer as T; ' in ended.stderr
    assert "A.from_pretrained('someone/pickled').save_pretrained('DIR')" in ended.stderr
    assert not any(line.endswith(".bin") for line in hub.asked)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said", "lost"),
    [
        (
            ["someone/texts", "--model", "someone/nothing"],
            "someone/nothing: is neither a folder here nor a model the",
            "someone/nothing: no such folder, nor was a model of that name fetched before, and the hub cannot be reach",
        ),
        (
            ["someone/nothing", "--model", "minilm"],
            "someone/nothing: no such file, and the hub's split 'train' cannot",
            "someone/nothing: no such file or folder, nor was a data set of that name fetched before, and the hub ca",
        ),
    ],
)
@pytest.mark.parametrize("endpoint", [None, NOWHERE])
def test_a_name_that_is_not_there_is_one_line_at_once(
    calmix: Command, tmp_path: Path, words: list[str], said: str, lost: str, endpoint: str | None
) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f"{word} {n},{word}\n" for word in ("cat", "bread") for n in range(20)))
    words = [str(data) if endpoint and word == "someone/texts" else word for word in words]
    ended = calmix("train", *words, "--out", "run", **({"endpoint": endpoint} if endpoint else {}))
    assert ended.returncode == 2
    assert (lost if endpoint else said) in ended.stderr
    assert ("cannot be reached (" in ended.stderr) == (endpoint is not None)
    assert len(told(ended)) == 1
    assert "Retrying" not in ended.stderr
    assert not (tmp_path / "run").exists()
