"""The example scripts run, and learn."""

import csv
import runpy
from pathlib import Path
from typing import Any

import pytest
import tiny

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["text", "label"])
        writer.writerows(zip(*tiny.texts(60), strict=True))
    return file


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_a_script_trains_on_a_table(script: Path, checkpoint: Any, data: Path) -> None:
    arguments = ["--model", str(checkpoint("bert")), "--data", str(data), "--lr", "0.005", "--epochs"]
    main = runpy.run_path(str(script))["main"]
    assert main([*arguments, "10"]) < main([*arguments, "1"])


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_a_script_explains_itself(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(script))["main"](["--help"])
    assert done.value.code == 0
    assert f"examples/{script.name}" in capsys.readouterr().out


def test_there_is_one_for_each_kind_of_loop() -> None:
    assert [path.stem for path in EXAMPLES] == ["accelerate_loop", "bare_pytorch_loop", "huggingface_trainer"]
