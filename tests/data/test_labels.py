from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data.labels import choice_labels, class_labels, distinct_cells
from calmix.data.origin import Origin
from calmix.errors import InputError

ORIGIN = Origin("train.csv", header=True)


def cells(values, kind=None):
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values, kind)])
    return distinct_cells(column, "label", ORIGIN)


def classes(values, kind=None, **options):
    labels, names = class_labels(cells(values, kind), ORIGIN, **options)
    return labels.tolist(), names


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        (["pos", "neg", "pos"], [1, 0, 1], ("neg", "pos")),
        ([" pos", "pos ", "neg"], [1, 1, 0], ("neg", "pos")),
        ([10, 9, 10], [1, 0, 1], ("9", "10")),
        (["10", "9", "-3"], [2, 1, 0], ("-3", "9", "10")),
        ([True, False], [1, 0], ("False", "True")),
        ([1.0, 0.0, 1.0], [1, 0, 1], ("0", "1")),
        (["1.0", "0.0", "1"], [1, 0, 1], ("0", "1")),
        (["001", "002"], [0, 1], ("001", "002")),
        (["NA", "none", "null"], [0, 1, 2], ("NA", "none", "null")),
        (["1.0", "x"], [0, 1], ("1.0", "x")),
        ([Decimal("1"), Decimal("2")], [0, 1], ("1", "2")),
        (["[x]", "y"], [0, 1], ("[x]", "y")),
    ],
)
def test_labels_are_names_in_order(values, labels, names):
    assert classes(values) == (labels, names)


def test_labels_may_come_in_chunks_and_categories():
    column = pa.chunked_array([["a", "b"], ["c"], ["a"]])
    assert classes(column) == ([0, 1, 2, 0], ("a", "b", "c"))
    assert classes(column.dictionary_encode()) == ([0, 1, 2, 0], ("a", "b", "c"))


def test_given_names_decide_which_labels_there_are_and_their_order():
    assert classes(["b", "a"], label_names=["c", "b", "a"]) == ([1, 2], ("c", "b", "a"))
    assert classes([1.0, 0.0], label_names=["1", "0"]) == ([0, 1], ("1", "0"))
    assert classes(["1.0"], label_names=["1.0", "2.5"]) == ([0], ("1.0", "2.5"))


def test_an_unknown_label_is_named_with_its_row_and_the_known_ones():
    with pytest.raises(InputError) as error:
        classes(["a", "postive"], label_names=["a", "positive"])
    assert str(error.value) == (
        "train.csv: unknown label 'postive' in column 'label' at row 3 (the header is row 1); "
        "did you mean 'positive'? (known: 'a', 'positive')"
    )


@pytest.mark.parametrize("empty", [["a", None], ["a", ""], ["a", "  "], [1.0, float("nan")], ["1.0", "nan"]])
def test_a_missing_label_is_an_error_or_minus_one(empty):
    with pytest.raises(InputError, match=r"no label in column 'label' at row 3 .*; fill in or drop such rows"):
        classes(empty)
    assert classes(empty, may_be_missing=True)[0] == [0, -1]


def test_a_column_without_any_label_is_all_minus_one_where_that_is_allowed():
    assert classes([None, None], may_be_missing=True) == ([-1, -1], ())
    assert classes([None, None], may_be_missing=True, label_names=["a"]) == ([-1, -1], ("a",))


@pytest.mark.parametrize("values", [[1.0, 0.37], ["1", "0.37"], [".5", "-2"]])
def test_fractions_are_regression(values):
    with pytest.raises(InputError, match=r"at row \d .* regression, which calmix does not do"):
        classes(values)


@pytest.mark.parametrize("values", [[["a"], ["b", "c"]], ['["a", "b"]', '["c"]'], ["a", "[1, 0]"]])
def test_multi_label_data_is_refused_by_name(values):
    with pytest.raises(InputError, match="multi-label data is not supported"):
        classes(values)


def test_mappings_are_no_labels():
    with pytest.raises(InputError, match="not labels"):
        classes([{"a": 1}])


def test_free_text_is_no_label():
    with pytest.raises(InputError, match="60 different labels in 60 rows; is it the label"):
        classes([f"text {row}" for row in range(60)])
    assert len(classes([f"text {row}" for row in range(50)])[1]) == 50


@given(st.lists(st.sampled_from(["a", "b", "10", "9", "-1"]), min_size=1))
def test_every_row_keeps_its_label(values):
    labels, names = classes(values)
    assert [names[label] for label in labels] == values
    assert set(names) == set(values)


@pytest.mark.parametrize("values", [[1, 0, 2], ["1", "0", "2"], ["B", "A", "C"], ["b", "a", "c"], [1.0, 0.0, 2.0]])
def test_the_right_choice_is_a_number_from_zero_or_a_letter(values):
    assert choice_labels(cells(values), np.array([2, 2, 3]), ORIGIN).tolist() == [1, 0, 2]


def test_a_missing_choice_is_an_error_or_minus_one():
    with pytest.raises(InputError, match="no label in column 'label' at row 3"):
        choice_labels(cells([1, None]), np.array([2, 2]), ORIGIN)
    assert choice_labels(cells([1, None]), np.array([2, 2]), ORIGIN, may_be_missing=True).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 2], "choice 2 in column 'label' at row 3 (the header is row 1) does not exist: there are 2"),
        ([0, -1], "choice -1 in column 'label' at row 3"),
        (["A", "C"], "choice 2 in column 'label' at row 3"),
        (["0", "9" * 30], "does not exist"),
        (["0", "the second"], "'the second' in column 'label' at row 3 (the header is row 1) is not a choice"),
        (["0", "0.5"], "is not a choice"),
        ([["0"], ["1"]], "multi-label data is not supported"),
    ],
)  # fmt: skip
def test_what_is_not_a_choice_is_refused(values, message):
    with pytest.raises(InputError) as error:
        choice_labels(cells(values), np.array([2, 2]), ORIGIN)
    assert message in str(error.value)
