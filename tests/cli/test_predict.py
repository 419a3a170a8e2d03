"""`calmix predict`."""

import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from calmix.data import read_table, tables
from calmix.models import load
from calmix.training import prediction_tables


class Counted:
    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *words: Any) -> Any:
        self.calls += 1
        return self.function(*words)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_on_stdout_has_the_calibrated_probabilities(calmix: Any, trained: Path, files: Any) -> None:
    ended = calmix("predict", trained, files["texts"])
    assert (ended.code, ended.err) == (0, "")
    found = rows_of(ended.out)
    assert list(found[0]) == ["id", "predicted", "confidence", "p_animal", "p_food", "p_weather"]
    probs = [[float(row[f"p_{name}"]) for name in ("animal", "food", "weather")] for row in found]
    expected = load(trained).predict_proba(["the cat saw rain", "bread", "my old dog liked snow"])
    np.testing.assert_allclose(probs, expected, atol=1e-6)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_is_written_in_the_format_of_its_name(
    calmix: Any, trained: Path, files: Any, place: Path, suffix: str
) -> None:
    out = place / f"deep/p.{suffix}"
    ended = calmix("predict", trained, files["texts"], "--out", out)
    assert (ended.code, ended.out, ended.err) == (0, "", f"· 3 rows: {out}\n")
    if suffix == "parquet":
        assert pq.read_table(out).num_rows == 3
    elif suffix == "jsonl":
        assert [set(json.loads(line)) >= {"id", "predicted"} for line in out.read_text().splitlines()] == [True] * 3
    else:
        assert len(rows_of(out.read_text())) == 3


def test_abstaining_says_what_to_accept_and_what_is_possible(calmix: Any, trained: Path, files: Any) -> None:
    found = rows_of(calmix("predict", trained, files["texts"], "--abstain").out)
    assert {row["accepted"] for row in found} <= {"true", "false"}
    assert all(set(json.loads(row["possible"])) <= {"animal", "food", "weather"} for row in found)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--ensemble", "other"], "the threshold of a single run is not used for an ensemble"),
        (["--mc-dropout", 2], "one of a single pass is not used; calibrate it with --mc-dropout and --guarantee"),
    ],
)
def test_a_threshold_of_other_predictions_is_not_abstained_by(
    calmix: Any, trained: Path, files: Any, more: list[Any], says: str
) -> None:
    ended = calmix("predict", trained, files["texts"], "--abstain", *more)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert says in ended.err


@pytest.mark.parametrize("out", ["new.csv", "./deep/../new.csv", "link.csv", "hard.csv"])
def test_the_texts_are_never_overwritten(calmix: Any, place: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.setattr("calmix.models.load", lambda *_, **__: pytest.fail("loaded"))
    (place / "deep").mkdir()
    (place / "new.csv").write_text("text\nthe cat\n")
    (place / "link.csv").symlink_to("new.csv")
    (place / "hard.csv").hardlink_to("new.csv")
    ended = calmix("predict", "model", "new.csv", "--out", out)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "is one of the tables that are read; give another file" in ended.err
    assert (place / "new.csv").read_text() == "text\nthe cat\n"


def test_columns_can_be_named(calmix: Any, trained: Path, place: Path) -> None:
    (place / "odd.csv").write_text("key,body\nk1,the cat\nk2,bread\n")
    found = rows_of(calmix("predict", trained, "odd.csv", "--text", "body", "--id", "key").out)
    assert [row["id"] for row in found] == ["k1", "k2"]


def test_choices_are_predicted(calmix: Any, checkpoint: Any, files: Any, place: Path) -> None:
    ended = calmix("predict", checkpoint("bert", choices=True), files["choices"], "--out", "p.jsonl")
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in (place / "p.jsonl").read_text().splitlines()]
    assert {len(line["probs"]) for line in lines} == {2, 3, 4}


def test_any_classifier_of_transformers_will_do(calmix: Any, checkpoint: Any, files: Any) -> None:
    assert len(rows_of(calmix("predict", checkpoint("bert"), files["texts"]).out)) == 3


def test_lower_precision_gives_nearly_the_same_probabilities(calmix: Any, trained: Path, files: Any) -> None:
    exact, lower = (
        [float(row["confidence"]) for row in rows_of(calmix("predict", trained, files["texts"], *more).out)]
        for more in ((), ("--precision", "bf16"))
    )
    assert lower != exact
    np.testing.assert_allclose(lower, exact, atol=0.05)


def test_an_ensemble_with_mc_dropout_predicts(calmix: Any, trained: Path, files: Any, checkpoint: Any) -> None:
    from calmix.models import Dropout, load

    members = (trained, checkpoint("electra"))
    ended = calmix("predict", trained, files["texts"], "--ensemble", members[1], "--mc-dropout", 3, "--dropout", 0.2)
    assert ended.code == 0, ended.err
    found = [float(line.split(",")[2]) for line in ended.out.splitlines()[1:]]
    texts = ["the cat saw rain", "bread", "my old dog liked snow"]
    expected = load(members, mc_dropout=Dropout(3, 0.2)).predict_proba(texts).max(1)
    assert found == pytest.approx(expected.tolist())
    assert calmix("predict", trained, files["texts"], "--mc-dropout", 0).code == 2
    assert calmix("predict", trained, files["texts"], "--dropout", 0.2).code == 2


def test_columns_named_in_training_are_found_again(calmix: Any, checkpoint: Any, files: Any, place: Path) -> None:
    for name in ("train", "dev", "test"):
        header, rest = files[name].read_text().split("\n", 1)
        Path(f"{name}.csv").write_text(header.replace("text", "Body").replace("label", "The  verdict") + "\n" + rest)
    named = ["--text", "body", "--label", "the verdict"]
    model = ["--model", checkpoint("bert"), "--recipe", "erm", "--epochs", "1", "--no-report"]
    assert calmix("train", "train.csv", "--dev", "dev.csv", *model, *named, "--out", "run").code == 0
    assert len(rows_of(calmix("predict", "run", "test.csv").out)) == 30
    assert calmix("evaluate", "run", "test.csv", "--no-report", "--json").code == 0
    assert calmix("calibrate", "run", "dev.csv", "--out", "again").code == 0
    assert calmix("ood", "run", "--test", "test.csv", "--ood", "other=dev.csv", "--out", "apart").code == 0
    # A table with columns of the usual names is read by these.
    assert len(rows_of(calmix("predict", "again", files["test"]).out)) == 30


def test_a_file_is_read_before_the_model_is_loaded(
    calmix: Any, odd: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    expected = calmix("predict", odd.run, odd.file).out
    assert [row["id"] for row in rows_of(expected)][:2] == ["k0", "k1"]
    monkeypatch.setattr("calmix.models.load", load)
    (place / "bad.csv").write_text("x\ny\n")
    ended = calmix("predict", odd.run, "bad.csv")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "no column looks like the text" in ended.err


def test_rows_are_in_the_order_of_the_file_and_their_probabilities_sum_to_one(
    calmix: Any, trained: Path, place: Path
) -> None:
    texts = ["the cat saw rain and snow " * 9, "bread", "my dog", "the cat saw rain", "bread " * 5]
    (place / "new.csv").write_text("ticket,text\n" + "".join(f"t{9 - k},{text}\n" for k, text in enumerate(texts)))
    words = ("predict", trained, "new.csv", "--id", "ticket", "--abstain", "--out")
    assert calmix(*words, "answers.csv").code == 0
    found = rows_of((place / "answers.csv").read_text())
    assert [row["id"] for row in found] == ["t9", "t8", "t7", "t6", "t5"]
    names = ["id", "predicted", "confidence", "p_animal", "p_food", "p_weather", "accepted", "possible"]
    assert list(found[0]) == names
    assert [row["predicted"] for row in found] == load(trained).predict(texts)
    for row in found:
        assert sum(float(row[name]) for name in names[3:6]) == pytest.approx(1)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_columns_of_the_file_can_stand_before_the_predictions(
    calmix: Any, trained: Path, place: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    (place / "new.csv").write_text(
        'id,text,"a, b",predicted,predicted_\n1,the cat,=1,x,y\n2,bread,,x,y\n3,my dog,é,x,y\n'
    )
    monkeypatch.setattr("calmix.training.prediction_tables", partial(prediction_tables, rows=2))
    counted = Counted(tables.read_delimited)
    monkeypatch.setattr(tables, "read_delimited", counted)
    assert calmix("predict", trained, "new.csv", "--with-columns", "--out", f"p.{suffix}").code == 0
    assert counted.calls == 1
    monkeypatch.undo()
    found = read_table(place / f"p.{suffix}").to_pydict()
    own = ["id_", "text", "a, b", "predicted__", "predicted_"]
    assert list(found) == [*own, "id", "predicted", "confidence", "p_animal", "p_food", "p_weather"]
    assert found["id"] == found["id_"] == ["1", "2", "3"]
    assert found["a, b"] == ["'=1" if suffix == "csv" else "=1", "", "é"]
    assert found["predicted"] == load(trained).predict(["the cat", "bread", "my dog"])


def test_what_is_no_table_has_no_columns_to_write(calmix: Any, trained: Path, place: Path) -> None:
    (place / "images").mkdir()
    ended = calmix("predict", trained, "images", "--with-columns")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "is no table" in ended.err
