"""Predictions as a table, written and read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny

from calmix.calibration import ConformalSets, SelectiveThreshold
from calmix.data import write_table
from calmix.errors import InputError
from calmix.models import Beside, Classifier, load
from calmix.training import prediction_table, prediction_tables, read_predictions, with_guarantees

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])


def test_a_row_says_what_is_predicted_and_how_surely() -> None:
    table = prediction_table(tiny.examples(3), PROBS, label_names=tiny.LABELS, logits=np.log(PROBS).astype(np.float32))
    assert table.column_names == ["id", "label", "predicted", "confidence", "p_animal", "p_food", "p_weather", "logits"]
    assert table["predicted"].to_pylist() == ["animal", "food", "weather"]
    assert table["confidence"].to_pylist() == [0.7, 0.8, 0.4]


def test_rows_without_labels_have_none() -> None:
    examples = tiny.Examples.from_texts(["a", "b", "c"])
    assert "label" not in prediction_table(examples, PROBS, label_names=tiny.LABELS).column_names


def test_choices_have_lists_as_long_as_they_are() -> None:
    examples = tiny.examples(3, kind="choices", counts=(2, 3, 3))
    probs = np.array([[0.6, 0.4, 0.0], *PROBS[1:]])
    table = prediction_table(examples, probs, label_names=())
    assert table["probs"].to_pylist() == [[0.6, 0.4], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]
    assert table["predicted"].to_pylist() == ["0", "1", "2"]


def test_guarantees_say_what_to_accept_and_what_is_possible(checkpoint: Any) -> None:
    loaded = load(checkpoint("bert"))
    beside = Beside(threshold=SelectiveThreshold(0.6, 0.9, 0.05, 0.5), sets=ConformalSets(0.75, 0.9, "lac"))
    classifier = Classifier(loaded.model, loaded.tokenizer, loaded.label_names, beside)
    table = with_guarantees(pa.table({"x": [1, 2, 3]}), PROBS, classifier)
    assert table["accepted"].to_pylist() == [True, True, False]
    assert table["possible"].to_pylist() == [["animal"], ["food"], ["animal", "food", "weather"]]


@pytest.mark.parametrize("kind", ["text", "choices"])
@pytest.mark.parametrize("rows", [1, 3, 7, 8])
def test_predictions_of_some_rows_at_a_time_are_those_of_all_at_once(checkpoint: Any, kind: str, rows: int) -> None:
    classifier = load(checkpoint("bert", choices=kind == "choices"))
    examples = tiny.examples(7, kind=kind)
    whole = prediction_table(examples, classifier.probabilities(examples), label_names=classifier.label_names)
    parts = list(prediction_tables(examples, classifier, rows=rows))
    assert [len(part) for part in parts] == [min(rows, 7 - start) for start in range(0, 7, rows)]
    found = pa.concat_tables(parts)
    assert found.schema == whole.schema
    assert found["id"].to_pylist() == whole["id"].to_pylist()
    np.testing.assert_allclose(found["confidence"], whole["confidence"], atol=1e-6)


def test_guarantees_are_told_of_some_rows_at_a_time_too(checkpoint: Any) -> None:
    loaded = load(checkpoint("bert"))
    beside = Beside(threshold=SelectiveThreshold(0.6, 0.9, 0.05, 0.5), sets=ConformalSets(0.75, 0.9, "lac"))
    classifier = Classifier(loaded.model, loaded.tokenizer, loaded.label_names, beside)
    for part in prediction_tables(tiny.examples(5), classifier, guarantees=True, rows=2):
        assert part.column_names[-2:] == ["accepted", "possible"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    examples = tiny.examples(3)
    file = tmp_path / f"mine{suffix}"
    write_table(prediction_table(examples, PROBS, label_names=tiny.LABELS), file)
    probs, labels, table = read_predictions(file)
    np.testing.assert_allclose(probs, PROBS)
    np.testing.assert_array_equal(labels, examples.labels)
    assert table.num_rows == 3


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("column", ["probs", "logits"])
def test_lists_are_probabilities_or_logits_as_their_column_says(tmp_path: Path, column: str, as_text: bool) -> None:
    values: list[Any] = [[0.25, 0.75], [0.5, 0.25, 0.25]]
    if column == "logits":
        values = [np.log(row).tolist() for row in values]
    if as_text:
        values = [json.dumps(row) for row in values]
    write_table(pa.table({"label": [1, 0], column: values}), tmp_path / "p.parquet")
    probs, labels, _ = read_predictions(tmp_path / "p.parquet")
    np.testing.assert_allclose(probs, [[0.25, 0.75, 0], [0.5, 0.25, 0.25]])
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,p_a,p_b\nx,0.5,0.5\n", "has no column 'label' to compare with"),
        ("label,score\na,0.5\n", "needs columns p_NAME for each class, or a list in 'probs' or 'logits'"),
        ("label,p_a,p_b\na,0.5,half\n", "column 'p_b' holds something that is not a number"),
        ("label,p_a,p_b\na,0.5,0.5\nc,0.5,0.5\n", r"row 3 \(the header is row 1\): label 'c' is not among 'a', 'b'"),
        ("label,probs\n0,none\n", "column 'probs' must hold a list of numbers in every row"),
        ("label,probs\n0,\n", "column 'probs' must hold a list of numbers in every row"),
        ("label,probs\n0,[]\n", "column 'probs' must hold a list of numbers in every row"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.csv").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_predictions(tmp_path / "p.csv")
    assert str(caught.value).startswith(str(tmp_path / "p.csv"))
    assert "\n" not in str(caught.value)
