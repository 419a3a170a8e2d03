import json
from dataclasses import replace

import pytest

from calmix.data import Duplicates, Examples, duplicates, hygiene_lines, leakage, read_examples
from calmix.data.hygiene import dev_lines
from calmix.errors import InputError


@pytest.mark.parametrize(
    ("texts", "labels", "rows", "conflicting"),
    [
        (["a", "b", "c"], [0, 1, 0], 0, 0),
        (["a", "A ", "c"], [0, 0, 0], 1, 0),
        (["a", "a", "a", "b", "b"], [0, 1, 0, 1, 1], 3, 2),
        (["a", "b", "a", "b"], [0, 1, 1, 0], 2, 2),
        (["a", "a"], None, 1, 0),
    ],
)
def test_copies_and_those_whose_labels_conflict_are_counted(texts, labels, rows, conflicting):
    assert duplicates(Examples.from_texts(texts, labels)) == Duplicates(rows=rows, conflicting=conflicting)


def test_pairs_are_copies_only_if_both_texts_are():
    assert duplicates(Examples.from_texts(["a", "a"], text_b=["x", "y"])).rows == 0
    assert duplicates(Examples.from_texts(["a", "a"], text_b=["x", "X"])).rows == 1


def test_rows_that_are_also_in_train_are_counted_each():
    train = Examples.from_texts(["One  text", "another"])
    assert leakage(train, Examples.from_texts(["one text", "ONE TEXT", "new"])) == 2
    assert leakage(train, Examples.from_texts(["new"])) == 0


def test_findings_are_told_line_by_line():
    train = Examples.from_texts(["a", "a", "b"], [0, 1, 0])
    dev, test = Examples.from_texts(["a", "c"]), Examples.from_texts(["d"])
    assert hygiene_lines(train, {"dev": dev, "test": test}) == [
        "train: 1 of 3 rows repeats another, 1 of them with conflicting labels",
        "dev: 1 of 2 rows is also in train: they inflate its scores",
    ]


def test_clean_data_needs_no_line():
    assert hygiene_lines(Examples.from_texts(["a", "b"], [0, 1]), {"dev": Examples.from_texts(["c"])}) == []


def test_rows_of_dev_in_another_set_are_said() -> None:
    train = Examples.from_texts(["one text", "another text"], [0, 1])
    dev, test = (Examples.from_texts(texts, [0, 1]) for texts in (["a dog", "a cat"], ["A cat", "a bird"]))
    assert hygiene_lines(train, {"dev": dev, "test": test}) == [
        "test: 1 of 2 rows is also in dev, on which the temperature is fitted and an epoch may be chosen: they inflate "
        "its scores"
    ]
    assert hygiene_lines(train, {"test": test, "dev": dev.take([0])}) == []


@pytest.mark.parametrize(("rows", "what"), [(1, "1 row is"), (199, "199 rows are"), (200, "")])
def test_few_rows_to_choose_by_are_said(rows: int, what: str) -> None:
    examples = Examples.from_texts([f"text {i}" for i in range(rows)], ["x"] * rows, label_names=["x", "y"])
    line = f"dev: {what} few to fit a temperature on: treat the calibrated figures as rough estimates"
    assert dev_lines(examples, examples) == ([line] if what else [])


def test_labels_without_a_row_to_choose_by_are_named() -> None:
    names = [f"label {k}" for k in range(8)]

    def of(labels: list[str]) -> Examples:
        return Examples.from_texts([f"text {i}" for i in range(len(labels))], labels, label_names=names)

    train, most = of(names[:7] * 100), names[:6] * 50  # the last label has no row at all
    assert dev_lines(train, of(most)) == [
        "dev: no row has the label 'label 6': the epoch and the temperature are chosen without it"
    ]
    (line,) = dev_lines(train, of(names[:2] * 150))
    assert line == (
        "dev: no row has the label 'label 2', 'label 3', 'label 4', and 2 more: the epoch and the temperature are "
        "chosen without them"
    )
    choices = replace(train, label_names=())
    assert dev_lines(choices, choices.take(range(300))) == []


@pytest.mark.parametrize(
    ("rows", "labels", "said"), [(60, 28, 28), (29, 10, 10), (30, 10, 0), (18, 9, 0), (300, 77, 0)]
)
def test_labels_of_hardly_several_rows_each_are_said(rows: int, labels: int, said: int) -> None:
    names = [f"2026-05-{day:02}" for day in range(1, labels + 1)]
    examples = Examples.from_texts([f"text {i}" for i in range(rows)], [names[i % labels] for i in range(rows)][:rows])
    line = f"train: {said} different labels in {rows} rows, like dates or ids: is --label right?"
    assert (line in hygiene_lines(examples, {})) == bool(said)
    choices = replace(examples, label_names=())
    assert not any("different labels" in line for line in hygiene_lines(choices, {}))


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        ([f"row-{i}" for i in range(20)], True),
        ([str(i) for i in range(20)], True),
        ([f"row {i}" for i in range(20)], False),
        (["yes", "no"] * 10, False),
        (["a", "b"], False),
    ],
)
def test_texts_that_look_like_ids_are_said(texts, ids):
    examples = Examples.from_texts(texts, [0, 1] * (len(texts) // 2))
    assert any("look like ids" in line for line in hygiene_lines(examples, {})) == ids


@pytest.mark.parametrize(
    ("one", "other", "rows", "alike"),
    [
        ("billing", "Billing", 3, True),
        ("tech issue", "Tech  Issue", 3, True),
        ("Techincal", "Technical", 60, True),
        ("Technicall", "Technical", 60, True),
        ("Tecnical", "Technical", 60, True),
        ("Techmical", "Technical", 60, True),
        ("Techmical", "Technical", 10, False),
        ("male", "female", 90, False),
        ("grade 1", "grade 2", 90, False),
        ("model-a1", "model-a", 90, False),
        ("no", "yo", 90, False),
        ("Technical", "Billing", 90, False),
        ("neuter", "neutral", 90, False),
    ],
)
def test_labels_that_look_like_one_are_said(one, other, rows, alike):
    examples = Examples.from_texts([f"text {i}" for i in range(rows + 2)], [one, one] + [other] * rows)
    lines = hygiene_lines(examples, {})
    other = other.replace("  ", "␣␣")
    said = f"train: the labels '{one}' (2 rows) and '{other}' ({rows} rows) look like one, written in two ways"
    assert lines == ([said] if alike else [])


def test_many_labels_that_look_like_one_are_one_line():
    names = [name for letter in "abcde" for name in (f"kind {letter}{letter}", *[f"Kind {letter}{letter}"] * 6)]
    examples = Examples.from_texts([f"text {i}" for i in range(len(names))], names)
    (line,) = hygiene_lines(examples, {})
    assert line.startswith(
        "train: 5 pairs of labels look like one, written in two ways: 'kind aa' (1 row) and 'Kind aa'"
    )
    assert line.endswith("'kind cc' (1 row) and 'Kind cc' (6 rows), and 2 more")


def test_a_part_that_is_not_read_is_said(tmp_path):
    file = tmp_path / "a.jsonl"
    rows = [{"q": f"text {k}", "endings": [f"a{k}", "b"], "label": k} for k in (0, 1)]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="name it with --text, the choices with --choices 'endings'"):
        read_examples(file)
    assert hygiene_lines(read_examples(file, text="q"), {}) == [
        "train: 'endings' is not read: if it is a part of what is classified, name it with --choices"
    ]
    assert hygiene_lines(read_examples(file, text="q", choices="endings"), {}) == []
    file = tmp_path / "b.csv"
    file.write_text("Claim,Hypothesis,label\na b,c,x\nd e,f,y\n")
    assert hygiene_lines(read_examples(file, text="claim"), {}) == [
        "train: 'Hypothesis' is not read: if it is a part of what is classified, name it with --text-b"
    ]
