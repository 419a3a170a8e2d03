import pytest

from calmix.data.origin import Origin, closest, listed, shown
from calmix.errors import InputError


def test_text_from_data_is_shown_on_one_line_without_control_characters():
    assert shown("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"


def test_long_values_are_cut():
    assert shown("x" * 61).endswith("…")
    assert shown("x" * 60) == repr("x" * 60)
    assert len(shown("\x00" * 1000)) <= 61


def test_long_lists_are_cut_and_counted():
    assert listed("abcd", limit=2) == "'a', 'b' and 2 more"
    assert listed("ab", limit=2) == "'a', 'b'"


def test_a_similar_name_is_suggested_whatever_its_case():
    assert closest("lable", ["Text", "Label"]) == "; did you mean 'Label'?"
    assert closest("zzz", ["Text", "Label"]) == ""


@pytest.mark.parametrize(("header", "row"), [(True, "row 2 (the header is row 1)"), (False, "row 1")])
def test_rows_are_counted_as_an_editor_does(header, row):
    assert Origin("file", header=header).row(0) == row


def test_errors_begin_with_the_name_of_the_source():
    error = Origin("train.csv").error("is odd")
    assert isinstance(error, InputError)
    assert str(error) == "train.csv: is odd"
