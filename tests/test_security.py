"""What SECURITY.md promises and no other test shows: texts stay out of logs, nothing of a checkpoint is run."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tiny

from calmix.cli.main import main
from calmix.data import write_table

ROOT = Path(__file__).parents[1]
SECRET = "passphrase12345"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table in which every text has something that nobody else should read."""
    examples = tiny.examples(24)
    texts = [f"{text} {SECRET}" for text in examples.column("text")]
    labels = [examples.label_names[k] for k in examples.labels]
    write_table(pa.table({"text": texts, "label": labels}), tmp_path / "train.csv")
    return tmp_path / "train.csv"


def ended(*words: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_texts_are_in_no_log_no_record_and_no_model(
    checkpoint: Callable[..., Path], table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    words = ["train", table, "--model", checkpoint("bert"), "--epochs", 1, "--out", out, "--track", "tensorboard"]
    assert ended(*words) == 0
    told = capfd.readouterr()
    assert SECRET not in told.out + told.err
    # What is for reading samples has them, and nothing else.
    holding = {p.name for p in out.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()}
    assert holding <= {"datamap.parquet", "label_issues.csv"}
    assert not any(SECRET.encode() in p.read_bytes() for p in (out / "model").rglob("*") if p.is_file())


def test_a_message_about_a_row_does_not_quote_its_text(
    checkpoint: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(f"text,label\n{SECRET},x\n{SECRET} more,\n")
    assert ended("train", tmp_path / "t.csv", "--model", checkpoint("bert"), "--out", tmp_path / "run") == 2
    told = capfd.readouterr().err
    assert "row 3" in told
    assert SECRET not in told


class _Runs:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "optimizer.pt", "training_args.bin"])
def test_a_pickle_is_not_opened_whether_or_not_there_are_safetensors_beside_it(
    checkpoint: Callable[..., Path], table: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for beside in (True, False):
        model = shutil.copytree(checkpoint("bert"), tmp_path / f"model-{beside}")
        (model / name).write_bytes(pickle.dumps(_Runs(tmp_path / "hacked")))
        if not beside:
            (model / "model.safetensors").unlink()
        assert ended("predict", model, table, "--out", tmp_path / "p.csv") == (0 if beside else 2)
        assert not (tmp_path / "hacked").exists()
    told = capfd.readouterr().err
    assert "holds pickled weights" in told
    assert "save_pretrained" in told


def test_the_command_that_converts_a_pickle_is_one_that_works(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification as Auto

    from calmix.errors import InputError
    from calmix.models import load

    model = shutil.copytree(checkpoint("bert"), tmp_path / "model")
    torch.save(Auto.from_pretrained(model).state_dict(), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with pytest.raises(InputError) as caught:
        load(model)
    found = re.search(r'python -c "(.*)"', str(caught.value))
    assert found is not None
    exec(found[1].replace("DIR", str(model)))
    (model / "pytorch_model.bin").unlink()
    assert load(model).label_names == tiny.LABELS


def test_what_is_printed_to_be_pasted_holds_nothing_of_a_strangers(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from calmix.errors import InputError
    from calmix.models import load

    model = shutil.copytree(checkpoint("bert"), tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["A; import os; os.system('x') #"]}))
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(InputError, match="import AutoModel as A"):
        load(model)


def test_every_dependency_has_a_version_that_is_written_down() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=\[; ]", name)[0].lower().replace("_", "-") for name in wanted} - {"calmix"}
    lines = [
        line for file in ("constraints.txt", "constraints-peers.txt") for line in (ROOT / file).read_text().split()
    ]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert names - pinned <= {"datasets"}  # used where it is installed, never here
