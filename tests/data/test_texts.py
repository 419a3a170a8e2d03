import pyarrow as pa
import pytest

from calmix.data.origin import Origin
from calmix.data.texts import choice_cells, id_cells, text_cells
from calmix.errors import InputError

ORIGIN = Origin("train.csv", header=True)


def column(values, kind=None):
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize(
    ("cells", "strings"),
    [
        (column([1, 20]), ["1", "20"]),
        (column([0.5, 2.0]), ["0.5", "2"]),
        (column([b"a", b"b"]), ["a", "b"]),
        (column(["a", " b"]), ["a", " b"]),
        (column(["a", "b"], pa.large_string()), ["a", "b"]),
        (column(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (column(["a\x00"]), ["a\x00"]),
    ],
)
def test_cells_of_any_plain_type_are_texts(cells, strings):
    texts = text_cells(cells, "text", ORIGIN)
    assert texts.to_pylist() == strings
    assert texts.type == pa.string()


@pytest.mark.parametrize("blank", ["", "  ", "\t\n", "\u3000", None])
def test_rows_without_text_are_counted_and_the_first_is_named(blank):
    with pytest.raises(InputError) as error:
        text_cells(column(["a", blank, blank]), "text", ORIGIN)
    expected = "no text in column 'text' at row 3 (the header is row 1) (and 1 more rows); fill or drop such rows"
    assert str(error.value) == f"train.csv: {expected}"


@pytest.mark.parametrize("cells", [column([["a"], ["b"]]), column([{"a": 1}]), column([b"\xff"])])
def test_cells_that_are_no_text_are_refused(cells):
    with pytest.raises(InputError, match=r"column 'text' holds '.*', not text"):
        text_cells(cells, "text", ORIGIN)


def test_ids_are_strings():
    assert id_cells(column([7, 8]), "id", ORIGIN).to_pylist() == ["7", "8"]


def test_an_id_that_occurs_twice_is_named_with_both_rows():
    with pytest.raises(InputError, match=r"the id 'a' in column 'id' is at row 2 .* and at row 4 "):
        id_cells(column(["a", "b", "a", "b"]), "id", ORIGIN)


def test_a_missing_id_is_named():
    with pytest.raises(InputError, match="no id in column 'id' at row 3"):
        id_cells(column(["a", None]), "id", ORIGIN)


@pytest.mark.parametrize(
    "cells",
    [[["a", "b"], ["1", "2", "3"]], ['["a", "b"]', ' ["1", 2, "3"]'], pa.array([["a", "b"], ["1", "2", "3"]])],
)
def test_choices_are_lists_or_json_lists(cells):
    choices = choice_cells(pa.table({"c": cells}), ("c",), ORIGIN)
    assert choices.to_pylist() == [["a", "b"], ["1", "2", "3"]]
    assert choices.type == pa.list_(pa.string())


def test_choices_may_be_lists_of_a_fixed_size():
    cells = pa.array([["a", "b"]], pa.list_(pa.string(), 2))
    assert choice_cells(pa.table({"c": cells}), ("c",), ORIGIN).to_pylist() == [["a", "b"]]


def test_choices_may_be_numbers():
    assert choice_cells(pa.table({"c": [[1, 2]]}), ("c",), ORIGIN).to_pylist() == [["1", "2"]]


def test_choices_may_be_spread_over_columns():
    table = pa.table({"e0": ["a", "b"], "e1": ["c", "d"]})
    assert choice_cells(table, ("e0", "e1"), ORIGIN).to_pylist() == [["a", "c"], ["b", "d"]]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([["a", "b"], ["c"]], "fewer than two choices in column 'c' at row 3"),
        ([["a", "b"], None], "fewer than two choices in column 'c' at row 3"),
        ([["a", "b", "c"], ["d", " "]], "an empty choice in column 'c' at row 3"),
        ([["a", "b"], ["c", None]], "an empty choice in column 'c' at row 3"),
        (['["a", "b"]', "a, b"], "column 'c' at row 3 (the header is row 1) is not a list of choices: 'a, b'"),
        (['["a", "b"]', '{"a": 1}'], "is not a list of choices"),
        (['["a", "b"]', "[[1], [2]]"], "is not a list of choices"),
        ([1, 2], "column 'c' holds no lists of choices"),
        ([[["a"], ["b"]]], "column 'c' holds no lists of choices"),
        ([[{"a": 1}, {"a": 2}]], "column 'c' holds no lists of choices"),
    ],
)
def test_cells_that_are_no_choices_are_refused(cells, message):
    with pytest.raises(InputError) as error:
        choice_cells(pa.table({"c": cells}), ("c",), ORIGIN)
    assert message in str(error.value)
