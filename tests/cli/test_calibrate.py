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


@pytest.mark.parametrize("more", [[], ["--method", "isotonic"], ["--ensemble"], ["--mc-dropout", 2]])
def test_columns_that_were_named_are_found_again(
    calmix: Any, checkpoint: Any, odd: Any, place: Path, more: Any
) -> None:
    more = [*more, checkpoint("roberta")] if more == ["--ensemble"] else more
    named = ("--text", "Body (raw)", "--label", "queue")
    assert calmix("calibrate", checkpoint("bert"), odd.file, *named, *more, "--out", "new").code == 0
    ended = calmix("evaluate", "new", odd.file, "--no-report")
    assert ended.code == 0, ended.err
    again = calmix("calibrate", "new", odd.file, "--out", "newer", *(more[:2] if "--mc-dropout" in more else []))
    assert again.code == 0, again.err
    assert calmix("predict", "newer", odd.file).code == 0


def test_the_model_that_was_calibrated_stays_as_it_was(
    calmix: Any, checkpoint: Any, odd: Any, place: Path, tree: Any
) -> None:
    before = tree(checkpoint("bert"))
    named = ("--text", "Body (raw)", "--label", "queue")
    assert calmix("calibrate", checkpoint("bert"), odd.file, *named, "--out", "new").code == 0
    assert tree(checkpoint("bert")) == before


def test_a_guarantee_lets_predict_abstain(calmix: Any, checkpoint: Any, files: Any, place: Path) -> None:
    ended = calmix("calibrate", checkpoint("bert"), files["test"], "--out", "new", "--guarantee", "0.3")
    assert ended.code == 0, ended.err
    assert "accuracy" in ended.out
    assert calmix("predict", "new", files["texts"], "--abstain").code == 0


@pytest.mark.parametrize("more", [[], ["--mc-dropout", 2, "--dropout", 0.2]])
def test_a_threshold_that_is_left_out_is_told(calmix: Any, trained: Path, files: Any, place: Path, more: Any) -> None:
    line = f"the threshold of {trained} held for its confidence before, and is left out"
    ended = calmix("calibrate", trained, files["test"], "--out", "without", *more)
    assert f"{line}: for a new one, calibrate with --guarantee 0.3\n" in ended.err
    assert calmix("predict", "without", files["texts"], "--abstain").code == 2
    assert line not in calmix("calibrate", trained, files["test"], "--guarantee", 0.3, "--out", "with", *more).err
    assert line not in calmix("calibrate", "without", files["test"], "--out", "again").err


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


def test_rows_the_model_was_trained_on_are_refused_and_some_of_them_said(
    calmix: Any, trained: Path, files: Any, place: Path
) -> None:
    for model in (trained, trained / "model"):
        ended = calmix("calibrate", model, files["train"], "--out", "new")
        assert ended.code == 2
        assert f"{files['train']}: the model was trained on 30 of these 30 rows" in ended.err
    assert list(place.iterdir()) == []
    head, *rows = files["test"].read_text().splitlines()
    texts = {row.split(",")[1] for row in files["train"].read_text().splitlines()[1:]}
    fresh = [row for row in rows if row.split(",")[1] not in texts]
    seen = files["train"].read_text().splitlines()[1]
    (place / "some.csv").write_text("\n".join([head, *fresh, seen]) + "\n")
    ended = calmix("calibrate", trained, "some.csv", "--out", "new")
    assert ended.code == 0, ended.err
    assert f"1 of {len(fresh) + 1} rows were in the training data" in ended.err


def test_a_file_that_is_not_there_is_told_before_the_model_is_loaded(
    calmix: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calmix.models.load", lambda *_, **__: pytest.fail("loaded"))
    assert calmix("calibrate", "model", "none.csv", "--out", "new").err == "calmix: none.csv: no such file\n"
    assert calmix("evaluate", "model", "none.csv").err == "calmix: none.csv: no such file\n"


@pytest.mark.usefixtures("place")
def test_a_column_that_is_not_there_is_told_before_the_model_is_loaded(
    calmix: Any, trained: Path, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calmix.models.load", lambda *_, **__: pytest.fail("loaded"))
    ended = calmix("calibrate", trained, files["dev"], "--label", "what", "--out", "again")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "--label: no column 'what'" in ended.err
