import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data import Examples
from calmix.errors import InputError


def examples(**changes):
    parts = {
        "table": pa.table({"id": ["x", "y", "z"], "text": ["one", "two", "three"], "more": [1, 2, 3]}),
        "labels": np.array([0, 1, 0]),
        "label_names": ("a", "b"),
    }
    return Examples(**{**parts, **changes})


def choices():
    table = pa.table({"id": ["x", "y"], "text": ["q", "r"], "choices": [["a", "b"], ["c", "d", "e"]]})
    return Examples(table, np.array([1, 2]), ())


def test_importing_the_data_room_costs_no_torch():
    code = "import sys, calmix.data; sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_columns_and_ids_are_lists_of_python_values():
    assert examples().ids == ["x", "y", "z"]
    assert examples().column("more") == [1, 2, 3]
    assert len(examples()) == 3


def test_the_kind_follows_from_the_columns():
    assert examples().kind == "text"
    assert Examples.from_texts(["a"], text_b=["b"]).kind == "pair"
    assert choices().kind == "choices"


def test_choices_are_counted_row_by_row():
    assert choices().choice_counts.tolist() == [2, 3]
    assert examples().choice_counts is None


def test_take_takes_rows_in_the_order_asked_for():
    taken = examples(targets=np.array([[1, 0], [0, 1], [0.5, 0.5]])).take([2, 0])
    assert taken.ids == ["z", "x"]
    assert taken.column("more") == [3, 1]
    assert taken.labels.tolist() == [0, 0]
    assert taken.targets.tolist() == [[0.5, 0.5], [1, 0]]
    assert taken.label_names == ("a", "b")


def test_taking_nothing_gives_no_rows():
    assert len(examples().take([])) == 0


def test_take_refuses_a_mask():
    with pytest.raises(TypeError, match="flatnonzero"):
        examples().take(np.array([True, False, True]))


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.array([0, 1])},
        {"targets": np.ones((3, 3))},
        {"table": pa.table({"text": ["a", "b", "c"]})},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes):
    with pytest.raises(ValueError):
        examples(**changes)


class TestDigest:
    def test_it_does_not_depend_on_how_the_table_is_stored(self):
        table = examples().table
        pieces = pa.concat_tables([table.slice(0, 1), table.slice(1, 2)])
        assert pieces["text"].num_chunks == 2
        large = table.set_column(1, "text", table["text"].cast(pa.large_string()))
        padded = pa.concat_tables([table, table]).combine_chunks().slice(3, 3)
        for same in (pieces, large, padded):
            assert examples(table=same).digest() == examples().digest()

    def test_it_does_not_depend_on_columns_that_training_does_not_read(self):
        assert examples(table=examples().table.drop_columns("more")).digest() == examples().digest()

    @pytest.mark.parametrize(
        "changes",
        [
            {"labels": np.array([0, 1, 1])},
            {"label_names": ("a", "c")},
            {"targets": np.full((3, 2), 0.5)},
            {"table": pa.table({"id": ["x", "y", "w"], "text": ["one", "two", "three"]})},
            {"table": pa.table({"id": ["x", "y", "z"], "text": ["one", "twot", "hree"]})},
            {"table": pa.table({"id": ["x", "y", "z"], "text": ["one", "two", "three"], "text_b": ["", "", ""]})},
        ],
    )
    def test_it_changes_with_all_that_training_reads(self, changes):
        assert examples(**changes).digest() != examples().digest()

    def test_it_sees_which_choice_is_in_which_row(self):
        moved = choices().table.set_column(2, "choices", [[["a", "b", "c"], ["d", "e"]]])
        assert (
            Examples(moved, np.array([1, 1]), ()).digest() != Examples(choices().table, np.array([1, 1]), ()).digest()
        )

    @given(st.lists(st.text(max_size=3), min_size=1, max_size=5), st.lists(st.text(max_size=3), min_size=1, max_size=5))
    def test_different_texts_have_different_digests(self, texts, others):
        def digest(rows):
            ids = [str(row) for row in range(len(rows))]
            return Examples(pa.table({"id": ids, "text": rows}), np.zeros(len(rows), dtype=np.int64), ("a",)).digest()

        assert (digest(texts) == digest(others)) == (texts == others)


class TestFromTexts:
    @pytest.mark.parametrize(
        ("labels", "names", "indices"),
        [
            (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
            ([10, 9, 10], ("9", "10"), [1, 0, 1]),
            ([True, False, True], ("False", "True"), [1, 0, 1]),
            (np.array([3, -1, 3]), ("-1", "3"), [1, 0, 1]),
            (np.array(["b", "a", "b"]), ("a", "b"), [1, 0, 1]),
            ([2.0, 1.0, 2.0], ("1", "2"), [1, 0, 1]),
            (("b", "a", "b"), ("a", "b"), [1, 0, 1]),
        ],
    )
    def test_labels_of_any_kind_become_sorted_names(self, labels, names, indices):
        made = Examples.from_texts(["x", "y", "z"], labels)
        assert made.label_names == names
        assert made.labels.tolist() == indices
        assert made.labels.dtype == np.int64

    def test_given_names_decide_the_order(self):
        made = Examples.from_texts(["x", "y"], ["a", "b"], label_names=["c", "b", "a"])
        assert made.label_names == ("c", "b", "a")
        assert made.labels.tolist() == [2, 1]

    def test_without_labels_rows_are_unlabelled(self):
        assert Examples.from_texts(["x", "y"]).labels.tolist() == [-1, -1]
        assert Examples.from_texts(["x"], label_names=["a", "b"]).label_names == ("a", "b")

    def test_ids_are_those_of_the_same_texts_in_a_file(self, tmp_path):
        from calmix.data import read_examples

        (tmp_path / "a.csv").write_text("text,label\nx,1\ny,2\n")
        assert Examples.from_texts(["x", "y"]).ids == read_examples(tmp_path / "a.csv").ids

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"labels": ["a"]}, "2 texts, but 1 labels"),
            ({"text_b": ["a", "b", "c"]}, "2 texts, but 3 text_b"),
            ({"labels": ["a", "b"], "label_names": ["a"]}, "unknown label 'b' in labels at row 2"),
            ({"labels": ["a", None]}, "no label in labels at row 2"),
            ({"labels": [0.3, 1.0]}, "regression"),
            ({"labels": [("a", "b"), ("a",)]}, "multi-label data is not supported"),
            ({"text_b": ["", "b"]}, "no text in column 'text_b' at row 1"),
        ],
    )
    def test_input_that_cannot_be_used_is_refused(self, arguments, message):
        with pytest.raises(InputError, match=message):
            Examples.from_texts(["x", "y"], **arguments)
