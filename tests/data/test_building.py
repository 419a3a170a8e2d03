import numpy as np
import pyarrow as pa
import pytest

from calmix.data.building import examples_from_table
from calmix.data.columns import Columns
from calmix.data.origin import Origin
from calmix.errors import InputError

PARTS = {"text": "text", "text_b": None, "choices": (), "label": "label", "id": None, "votes": None}


def build(table, *, label_names=None, may_be_missing=False, **parts):
    return examples_from_table(
        pa.table(table),
        Columns(**{**PARTS, **parts}),
        Origin("train.csv"),
        label_names=label_names,
        may_be_missing=may_be_missing,
    )


def test_columns_with_a_part_come_first_and_the_others_stay_as_they_were():
    table = {"page": [7, 8], "label": ["x", "y"], "body": ["a", "b"], "key": [1, 2]}
    examples = build(table, text="body", id="key")
    assert examples.table.to_pydict() == {"id": ["1", "2"], "text": ["a", "b"], "page": [7, 8]}
    assert examples.source == "train.csv"


def test_an_unused_column_whose_name_is_taken_gets_an_underscore():
    table = {"text": ["a", "b"], "text_": [1, 2], "id": [5, 5], "body": ["c", "d"], "label": ["x", "y"]}
    examples = build(table, text="body")
    assert examples.table.column_names == ["id", "text", "text__", "text_", "id_"]
    assert examples.column("text") == ["c", "d"]
    assert examples.column("text__") == ["a", "b"]
    assert examples.column("text_") == [1, 2]
    assert examples.column("id_") == [5, 5]


def test_ids_do_not_change_when_labels_do():
    texts = {"text": ["a", "b", "a"]}
    assert build({**texts, "label": [0, 1, 1]}).ids == build({**texts, "label": [1, 0, 0]}).ids


def test_pairs_and_choices_come_right_after_the_text():
    pair = build({"label": ["x"], "b": ["2"], "text": ["1"]}, text_b="b")
    assert pair.table.column_names == ["id", "text", "text_b"]
    choice = build({"label": [1], "e0": ["x"], "text": ["1"], "e1": ["y"]}, choices=("e0", "e1"))
    assert choice.table.to_pydict() == {"id": choice.ids, "text": ["1"], "choices": [["x", "y"]]}
    assert choice.labels.tolist() == [1]
    assert choice.label_names == ()


def test_votes_decide_the_labels_and_the_label_column_only_the_names():
    table = {"text": ["a", "b"], "label": ["x", None], "votes": [{"x": 1, "y": 3}, {"x": 1, "y": 0}]}
    examples = build(table, votes="votes")
    assert examples.targets.tolist() == [[0.25, 0.75], [1, 0]]
    assert examples.labels.tolist() == [1, 0]
    assert examples.labels.dtype == np.int64
    assert examples.label_names == ("x", "y")


def test_without_labels_every_row_is_minus_one():
    examples = build({"text": ["a", "b"], "label": ["x", "y"]}, label=None)
    assert examples.labels.tolist() == [-1, -1]
    assert examples.column("label") == ["x", "y"]
    assert build({"text": ["a"]}, label=None, label_names=["x", "y"]).label_names == ("x", "y")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"label_names": ["x", "x"]}, "the label names are not all different: 'x', 'x'"),
        ({"choices": ("c",), "label_names": ["x"]}, "this is multiple choice, which has no label names"),
        ({"choices": ("c",), "votes": "v"}, "votes are for classes"),
    ],
)
def test_parts_that_exclude_each_other_are_refused(parts, message):
    with pytest.raises(InputError, match=message):
        build({"text": ["a"], "label": [0], "c": [["x", "y"]], "v": [[1, 2]]}, **parts)
