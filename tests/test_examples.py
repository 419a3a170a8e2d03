"""The example scripts run, and learn."""

import csv
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
LOOPS = [path for path in EXAMPLES if path.stem != "data_map_to_student"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["text", "label"])
        writer.writerows(zip(*tiny.texts(60), strict=True))
    return file


@pytest.mark.parametrize("script", LOOPS, ids=lambda path: path.name)
def test_a_loop_trains_on_a_table(script: Path, checkpoint: Any, data: Path) -> None:
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
    assert [path.stem for path in LOOPS] == ["accelerate_loop", "bare_pytorch_loop", "huggingface_trainer"]


def test_the_way_from_a_map_to_a_student(
    checkpoint: Any, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLES[2]))["main"]
    models = ["--mapper", checkpoint("roberta"), "--teacher", checkpoint("electra"), "--student", checkpoint("bert")]
    files = ["--data", data, "--dev", data, "--ood", data, "--out", tmp_path / "out"]
    words = [str(word) for word in (*models, *files, "--lr", 0.005, "--epochs", 2)]
    loss = main(words)
    printed = capsys.readouterr().out
    assert loss > 0
    assert "ood-elsewhere: accuracy" in printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["map", "student", "teacher"]
    shutil.rmtree(tmp_path / "out" / "student")
    assert main(words) == loss
    again = capsys.readouterr().out
    assert "map: is there" in again
    assert "teacher: holds this very run, finished" in again
