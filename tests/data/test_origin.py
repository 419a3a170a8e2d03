import pytest

from calmix.data.origin import Origin, closest, few, listed, neighbour, shown
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


@pytest.mark.parametrize(
    ("told", "line"),
    [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c, and 1 more"), ("abcdefg", "a, b, c, and 4 more")],
)
def test_of_several_things_three_are_told_and_the_others_counted(told, line):
    assert few(list(told)) == line


def test_a_similar_name_is_suggested_whatever_its_case():
    assert closest("lable", ["Text", "Label"]) == "; did you mean 'Label'?"
    assert closest("zzz", ["Text", "Label"]) == ""


def test_what_is_beside_a_path_that_is_not_there_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tickets.csv", "tickets.jsonl", "a.csv", "deep/Test.csv", "runs/first/run.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert neighbour("tikets.csv") == "; did you mean 'tickets.csv'?"
    assert neighbour("tickets.json") == "; did you mean 'tickets.jsonl'?"
    assert neighbour("deep/tset.csv") == "; did you mean 'deep/Test.csv'?"
    assert neighbour(tmp_path / "runs" / "frist/", lambda path: (path / "run.toml").is_file()).endswith("/first'?")
    # An ending in common makes no names alike, nor does a folder.
    assert neighbour("z.csv") == neighbour("runs/zzz.csv") == neighbour("nowhere/tickets.csv") == ""


@pytest.mark.parametrize(("header", "row"), [(True, "row 2 (the header is row 1)"), (False, "row 1")])
def test_rows_are_counted_as_an_editor_does(header, row):
    assert Origin("file", header=header).row(0) == row


def test_errors_begin_with_the_name_of_the_source():
    error = Origin("train.csv").error("is odd")
    assert isinstance(error, InputError)
    assert str(error) == "train.csv: is odd"
