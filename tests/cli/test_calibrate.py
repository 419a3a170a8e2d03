"""`calmix calibrate`."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic", "histogram"])
def test_a_calibrated_copy_is_written_and_predicts(
    calmix: Any, trained: Path, files: Any, place: Path, tree: Any, method: str
) -> None:
    before = tree(trained)
    ended = calmix("calibrate", trained, files["test"], "--out", "new", "--method", method)
    assert ended.code == 0, ended.err
    assert ended.out.endswith("model: new\n")
    assert ("only calmix applies it" in ended.err) is (method != "temperature")
    assert "fit: these rows chose the correction" in ended.err
    assert calmix("predict", "new", files["texts"]).code == 0
    assert sorted(p.name for p in place.iterdir()) == ["new"]
    assert tree(trained) == before


@pytest.mark.parametrize("method", ["temperature", "histogram"])
def test_a_changed_accuracy_is_told(calmix: Any, trained: Path, files: Any, place: Path, method: str) -> None:
    found = json.loads(calmix("calibrate", trained, files["test"], "--out", "a", "--method", method, "--json").out)
    before, after = (found["splits"]["fit"][when]["accuracy"] for when in ("before", "after"))
    ended = calmix("calibrate", trained, files["test"], "--out", "b", "--method", method)
    line = f"fit: {method} changes predictions, accuracy goes from {before:.1%} to {after:.1%}\n"
    assert (line in ended.out) is (method == "histogram")


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_json_is_strict_and_all_that_stdout_gets(
    calmix: Any, trained: Path, files: Any, place: Path, method: str
) -> None:
    ended = calmix("calibrate", trained, files["test"], "--out", "new", "--json", "--method", method)
    found = json.loads(ended.out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert (found["folder"], found["method"]) == ("new", method)
    assert ended.err == ""


def test_a_guarantee_lets_predict_abstain(calmix: Any, checkpoint: Any, files: Any, place: Path) -> None:
    ended = calmix("calibrate", checkpoint("bert"), files["test"], "--out", "new", "--guarantee", "0.3")
    assert ended.code == 0, ended.err
    assert "accuracy" in ended.out
    assert calmix("predict", "new", files["texts"], "--abstain").code == 0


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_an_ensemble_gets_a_temperature_of_its_own_in_one_folder(
    calmix: Any, trained: Path, files: Any, place: Path, checkpoint: Any, method: str
) -> None:
    words = ("calibrate", trained, files["test"], "--ensemble", checkpoint("electra"), "--method", method)
    ended = calmix(*words, "--guarantee", 0.3, "--out", "both")
    assert ended.code == 0, ended.err
    assert "only calmix applies it" in ended.err
    assert sorted(p.name for p in (place / "both").iterdir()) == [
        "calmix.json",
        "ensemble.json",
        "member-1",
        "member-2",
    ]
    assert calmix("predict", "both", files["texts"], "--abstain").code == 0
    figures = json.loads(calmix("evaluate", "both", files["test"], "--json").out)[str(files["test"])]
    raw = json.loads(calmix("evaluate", trained, files["test"], "--ensemble", checkpoint("electra"), "--json").out)
    assert figures["nll"] < raw[str(files["test"])]["nll"]


def test_mc_dropout_is_remembered_beside_the_weights(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    ended = calmix("calibrate", trained, files["test"], "--mc-dropout", 3, "--dropout", 0.2, "--out", "new")
    assert ended.code == 0, ended.err
    kept = json.loads((place / "new" / "calmix.json").read_text())
    assert kept["dropout"] == {"passes": 3, "rate": 0.2, "seed": 0}
    assert kept["recalibrator"]["kind"] == "temperature"
    assert calmix("predict", "new", files["texts"]).out == calmix("predict", "new", files["texts"]).out
    assert calmix("export", "new", "--out", "graph").code == 2
