import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data.origin import Origin
from calmix.data.votes import vote_targets
from calmix.errors import InputError

ORIGIN = Origin("train.csv", header=True)


def targets(values, kind=None, **options):
    return vote_targets(pa.chunked_array([pa.array(values, kind)]), "votes", ORIGIN, **options)


@pytest.mark.parametrize("cells", [[[3, 1], [0, 2]], ["[3, 1]", "[0, 2]"], [[0.75, 0.25], [0.0, 1.0]]])
def test_lists_are_in_the_order_of_the_label_names(cells):
    votes, names = targets(cells, label_names=["b", "a"])
    assert names == ("b", "a")
    assert votes.tolist() == [[0.75, 0.25], [0, 1]]


def test_lists_follow_the_names_found_in_the_label_column():
    assert targets([[1, 3]], found_names=("a", "b"))[1] == ("a", "b")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([{"b": 3, "a": 1}, {"a": 2}], None),
        (['{"b": 3, "a": 1}', '{"a": 2}'], None),
        ([[("b", 3), ("a", 1)], [("a", 2)]], pa.map_(pa.string(), pa.int64())),
    ],
)
def test_mappings_name_their_labels(cells, kind):
    votes, names = targets(cells, kind)
    assert names == ("a", "b")
    assert votes.tolist() == [[0.25, 0.75], [1, 0]]


def test_labels_that_nobody_voted_for_come_from_the_label_column():
    assert targets([{"a": 1}], found_names=("a", "c"))[1] == ("a", "c")


@given(st.lists(st.lists(st.floats(0, 1e308), min_size=3, max_size=3), min_size=1, max_size=5))
def test_rows_sum_to_one(rows):
    rows = [[*row[:2], row[2] + 1e-3] for row in rows]
    votes, _ = targets(rows, label_names="abc")
    assert np.allclose(votes.sum(axis=1), 1)
    assert votes.argmax(axis=1).tolist() == np.argmax(rows, axis=1).tolist()


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ([[1, 2]], {}, "does not say which label each number is for"),
        ([[1, 2], [1, -1]], {"label_names": "ab"}, "at row 3 (the header is row 1) must be numbers from 0 upwards"),
        ([[1, 2], [1, float("nan")]], {"label_names": "ab"}, "at row 3 (the header is row 1) must be numbers"),
        ([[1, 2], [1, None]], {"label_names": "ab"}, "at row 3 (the header is row 1) must be numbers"),
        (["[1, 2]", "[1, Infinity]"], {"label_names": "ab"}, "must be numbers from 0 upwards"),
        ([[1, 2], [0, 0]], {"label_names": "ab"}, "no votes in column 'votes' at row 3"),
        ([[1, 2], [1, 2, 3]], {"label_names": "ab"}, "3 numbers in column 'votes' at row 3"),
        ([[1, 2], None], {"label_names": "ab"}, "column 'votes' at row 3 (the header is row 1) holds no votes: None"),
        (["[1, 2]", "1 2"], {"label_names": "ab"}, "holds no votes: '1 2'; write a list of numbers"),
        (["[1, 2]", '["x", 2]'], {"label_names": "ab"}, "holds no votes"),
        ([{"a": 1}, {"c": 1}], {"label_names": "ab"}, "unknown label 'c' in column 'votes' at row"),
        ([1, 2], {"label_names": "ab"}, "holds no votes: 1"),
    ],
)  # fmt: skip
def test_votes_that_make_no_distribution_are_refused(cells, options, message):
    with pytest.raises(InputError) as error:
        targets(cells, **options)
    assert message in str(error.value)
    assert str(error.value).startswith("train.csv: ")
