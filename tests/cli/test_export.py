"""`calmix export`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import DOCS, blocks, commands

from calmix.models import load

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


def test_a_run_is_exported_and_checked(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    ended = calmix("export", trained, "--check", files["test"], "--out", "onnx", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["onnx"]["changed_predictions"] == 0
    assert (place / "onnx" / "model.onnx").is_file()


@pytest.mark.usefixtures("place")
def test_the_originals_figures_are_those_of_evaluate_and_a_note_names_what_the_graph_lacks(
    calmix: Any, trained: Path, files: Any
) -> None:
    assert calmix("calibrate", trained, files["dev"], "--method", "isotonic", "--out", "corrected").code == 0
    for model, lacks in ((trained, None), ("corrected", "isotonic")):
        words = ("export", model, "--check", files["test"], "--out")
        ended = calmix(*words, f"{lacks}-json", "--json")
        found = json.loads(ended.out)
        measured = json.loads(calmix("evaluate", model, files["test"], "--no-report", "--json").out)
        expected = measured[str(files["test"])]
        assert found["left_out"] == lacks
        for figure in ("accuracy", "ece", "nll"):
            assert found["original"]["figures"][figure] == pytest.approx(expected[figure], abs=1e-6)
        ended = calmix(*words, f"{lacks}-onnx")
        assert ended.err.count("is not in the graph") == (lacks is not None)
        assert f"accuracy {expected['accuracy']:.1%} →" in ended.out


@pytest.mark.parametrize("rows", ["labelled", "not labelled", "trained on"])
def test_int8_says_whose_threshold_is_where(calmix: Any, trained: Path, files: Any, place: Path, rows: str) -> None:
    (place / "texts.csv").write_text("text\nthe cat saw rain\nbread\n")
    check = {"labelled": files["test"], "not labelled": "texts.csv", "trained on": files["train"]}[rows]
    ended = calmix("export", trained, "--check", check, "--int8", "--out", "onnx")
    assert ended.code == 0, ended.err
    assert (
        "· model-int8.onnx: quantised weights change confidences, which the temperature was not fitted to" in ended.err
    )
    assert ended.out.count("with the model's threshold, ") == 2
    assert (place / "onnx" / "calmix.json").is_file()
    own = (place / "onnx" / "calmix-int8.json").is_file()
    assert own == (rows == "labelled")
    assert ("  with a threshold of its own: " in ended.out) == own
    says = {
        "labelled": "calmix-int8.json that of model-int8.onnx, fitted to the rows of --check: judge it on others",
        "not labelled": "model-int8.onnx has none, since the rows of --check are not labelled",
        "trained on": "model-int8.onnx has none, since some rows of --check were in the training data",
    }
    assert says[rows] in ended.err
    assert ("30 of 30 texts were in the training data" in ended.err) == (rows == "trained on")


def test_the_python_of_the_page_runs_with_a_sentence_cnn(calmix: Any, files: Any, place: Path) -> None:
    words = ("--model", "sentence-cnn", "--epochs", 1, "--no-report", "--out", "run")
    assert calmix("train", files["train"], *words).code == 0
    assert calmix("export", "run", "--check", files["test"], "--out", "run-onnx").code == 0
    page = blocks((DOCS / "export.md").read_text(encoding="utf-8"))
    code = next(text for language, text in page if language == "python")
    # On its own: this process knows the architecture, a user's does not.
    code += "\nimport sys; assert 'calmix' not in sys.modules; print(labels)"
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(load("run").predict(["Where is my parcel?", "Great, thanks"])), done.stderr


@pytest.mark.parametrize("words", [["nowhere"], ["RUN", "--check", "missing.csv"], ["CHOICES"]])
def test_what_is_wrong_ends_in_one_line_and_leaves_nothing(
    calmix: Any, trained: Path, checkpoint: Any, place: Path, words: list[str]
) -> None:
    known = {"RUN": trained, "CHOICES": checkpoint("bert", choices=True)}
    ended = calmix("export", *(known.get(word, word) for word in words), "--out", "onnx")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert list(place.iterdir()) == []


def test_columns_named_in_training_are_found_again_to_check_on(calmix: Any, odd: Any, place: Path) -> None:
    ended = calmix("export", odd.run, "--check", odd.file, "--out", "onnx", "--json")
    assert ended.code == 0, ended.err
    assert "figures" in json.loads(ended.out)["onnx"]
    ended = calmix("export", odd.run, "--check", odd.file, "--text", "nothing", "--out", "other")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_a_model_of_other_data_asks_for_data_to_check_on(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ("--model", checkpoint("bert"), "--epochs", 1, "--no-report", "--out", "run")
    assert calmix("train", files["pairs"], *words).code == 0
    ended = calmix("export", "run", "--out", "onnx")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.endswith("give --check FILE\n")
    assert not (place / "onnx").exists()


def test_the_page_about_exporting_is_so(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    (place / "run").symlink_to(trained)
    (place / "test.csv").symlink_to(files["test"])
    names: dict[str, Any] = {}
    for language, text in blocks((DOCS / "export.md").read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(text, "<export>", "exec"), names)
        for words in commands(text) if not language else ():
            assert calmix(*words[1:]).code == 0
    expected = load(trained).predict_proba(["Where is my parcel?", "Great, thanks"])
    np.testing.assert_allclose(names["probabilities"], expected, atol=1e-5)
    assert names["labels"] == load(trained).predict(["Where is my parcel?", "Great, thanks"])
