"""Data sets that fit together, and class weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.data import Examples
from calmix.errors import InputError
from calmix.training.preparing import Sets, prepare_sets


def prepared(train: Any, **changes: Any) -> Sets:
    options: dict[str, Any] = {"dev": None, "test": None, "ood": {}, "guard": False, "dev_fraction": 0.2, "seed": 0}
    if changes.get("dev") is not None:
        options["dev_fraction"] = None
    columns = {"text": None, "text_b": None, "choices": None, "label": None, "id": None, "votes": None}
    return prepare_sets(train, columns=columns, **(options | changes))


def test_dev_and_guard_are_split_off_and_share_no_row() -> None:
    sets = prepared(tiny.examples(100), guard=True)
    assert {name: len(examples) for name, examples in sets.named().items()} == {"train": 80, "dev": 10, "guard": 10}
    assert len({id_ for examples in sets.named().values() for id_ in examples.ids}) == 100


def test_a_dev_set_that_many_labels_make_larger_than_asked_for_is_said() -> None:
    texts, labels = [f"text {i}" for i in range(60)], [f"day {i % 28:02}" for i in range(60)]
    notes = prepared(Examples.from_texts(texts, labels), dev_fraction=0.1).notes
    assert (
        "dev: 28 rows split off the training set (32 stay), stratified by label, more than the 10% asked for: "
        in notes[0]
    )
    assert "train: 28 different labels in 32 rows, like dates or ids: is --label right?" in notes
    assert not any("asked for" in note for note in prepared(tiny.examples(100)).notes)


def test_a_dev_set_too_small_for_what_is_asked_of_it_is_said() -> None:
    texts, labels = [f"text {i}" for i in range(61)], [*["x", "y"] * 30, "once"]
    notes = prepared(Examples.from_texts(texts, labels)).notes
    assert "dev: 12 rows are few to fit a temperature on: treat the calibrated figures as rough estimates" in notes
    said = "dev: no row has the label 'once': the epoch and the temperature are chosen without it"
    assert said in notes


def rows_of(rows: int, classes: int) -> Examples:
    return Examples.from_texts([f"text {i}" for i in range(rows)], [f"class {i % classes:03}" for i in range(rows)])


@pytest.mark.parametrize(
    ("rows", "classes", "folded"),
    [(30, 2, True), (999, 2, True), (1000, 2, False), (1499, 150, True), (1500, 150, False), (5000, 600, False)],
)
def test_few_rows_in_all_or_of_a_class_are_folded_and_not_split(rows: int, classes: int, folded: bool) -> None:
    sets = prepared(rows_of(rows, classes), dev_fraction=None, fold_if_few=True)
    assert (sets.folds is not None) == folded
    if sets.folds is not None:
        assert np.bincount(sets.folds).tolist() == pytest.approx([rows / 3] * 3, abs=2)
        assert sets.train.ids == sets.dev.ids
        assert "dev: none is split off so few rows: 3 networks learn from 2 of 3 parts each" in sets.notes[0]
        assert not any("are also in" in note for note in sets.notes)
    assert len(prepared(rows_of(rows, classes), dev_fraction=None).dev) < rows


@pytest.mark.parametrize("changes", [{"folds": 0}, {"dev_fraction": 0.2}, {"guard": True}, {"dev": rows_of(30, 2)}])
def test_few_rows_are_not_folded_where_something_else_was_asked_for(changes: dict[str, Any]) -> None:
    assert prepared(rows_of(60, 2), **{"dev_fraction": None, "fold_if_few": True} | changes).folds is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dev": rows_of(30, 2)}, "--folds take the place of dev data: give them, --dev or --dev-fraction"),
        ({"dev_fraction": 0.2}, "--folds take the place of dev data"),
        ({"guard": True}, "a guarantee needs rows that no network has learnt from: give --dev, not --folds"),
        ({"folds": 1}, "--folds must be 2 or more, not 1"),
        ({"folds": 40}, "30 rows with 30 different texts are too few for 40 folds; give a dev file"),
    ],
)
def test_folds_and_what_they_take_the_place_of_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared(rows_of(30, 2), **{"dev_fraction": None, "folds": 3} | changes)


def test_the_only_row_of_a_label_is_in_no_fold_and_not_among_the_dev_rows() -> None:
    data = Examples.from_texts([f"text {i}" for i in range(31)], [*["a", "b"] * 15, "rare"])
    sets = prepared(data, dev_fraction=None, fold_if_few=True)
    assert sets.folds is not None
    assert sets.folds[-1] == -1
    assert (len(sets.train), len(sets.dev)) == (31, 30)


def test_the_seed_decides_the_split() -> None:
    one, again, other = (prepared(tiny.examples(100), seed=seed).dev.ids for seed in (0, 0, 1))
    assert one == again != other


def test_labels_of_other_files_are_those_of_training(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\nc,z\nd,x\ne,y\nf,z\n")
    (tmp_path / "dev.csv").write_text("text,label\ng,z\nh,y\n")
    sets = prepared(tmp_path / "train.csv", dev=tmp_path / "dev.csv", ood={"far": tmp_path / "dev.csv"})
    assert sets.dev.label_names == ("x", "y", "z")
    assert sets.dev.labels.tolist() == [2, 1]
    assert list(sets.named()) == ["train", "dev", "ood-far"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dev": Examples.from_texts(["a", "b"], ["x", "y"])}, "labels differ: x, y here, animal, food, weather in"),
        ({"test": tiny.examples(4, kind="pair")}, "holds pair data, the training set text data"),
        ({"test": Examples.from_texts(["a"])}, "has unlabelled rows"),
    ],
)
def test_what_does_not_fit_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared(tiny.examples(30), **changes)


def test_a_label_that_no_training_row_has_is_noted() -> None:
    data = Examples.from_texts(["a", "b", "c", "d"], ["x", "y", "x", "y"], label_names=["x", "y", "rare"])
    assert "train: no row left with label 'rare'" in prepared(data, dev=data).notes


def test_of_many_labels_that_no_training_row_has_three_are_named() -> None:
    names = ["x", "y", *(f"rare {k}" for k in range(46))]
    data = Examples.from_texts(["a", "b", "c", "d"], ["x", "y", "x", "y"], label_names=names)
    said = "train: no row left with label 'rare 0', 'rare 1', 'rare 2', and 43 more"
    assert said in prepared(data, dev=data).notes


def test_texts_that_training_and_test_share_are_noted() -> None:
    data = tiny.examples(30)
    assert any("test" in note for note in prepared(data, test=data.take([0, 1])).notes)


def _spelt(file: Path, *labels: str) -> Path:
    file.write_text("text,label\n" + "".join(f"{file.stem} {i},{label}\n" for i, label in enumerate(labels)))
    return file


def test_labels_that_differ_in_case_alone_stop_before_anything_else(tmp_path: Path) -> None:
    train = _spelt(tmp_path / "train.csv", *["Billing"] * 6, "billing", *["Tech"] * 5)
    with pytest.raises(InputError, match=r"train.csv: .*'billing' \(1 row\) and 'Billing' \(6 rows\); --merge-labels"):
        prepared(train)
    kept = prepared(train, merge_labels=False, dev=train)
    assert kept.train.label_names == ("Billing", "Tech", "billing")
    assert any("written in two ways" in note for note in kept.notes)


def test_merged_labels_are_merged_in_all_sets_and_said(tmp_path: Path) -> None:
    train = _spelt(tmp_path / "train.csv", *["Billing"] * 6, "billing", *["Tech"] * 5)
    dev = _spelt(tmp_path / "dev.csv", "BILLING", "Tech", "Billing")
    far = Examples.from_texts(["a", "b"], ["Tech", "tech"], label_names=["Billing", "Tech", "tech"])
    sets = prepared(train, dev=dev, test=dev, ood={"far": far}, merge_labels=True)
    assert {examples.label_names for examples in sets.named().values()} == {("Billing", "Tech")}
    assert sets.dev.labels.tolist() == sets.judged["test"].labels.tolist() == [0, 1, 0]
    assert sets.judged["ood-far"].labels.tolist() == [1, 1]
    assert [note for note in sets.notes if "merged" in note] == [
        "train: merged labels of 1 row: 'billing' (1 row) into 'Billing'",
        "dev: merged labels of 1 row: 'BILLING' (1 row) into 'Billing'",
        "test: merged labels of 1 row: 'BILLING' (1 row) into 'Billing'",
        "ood-far: merged labels of 1 row: 'tech' (1 row) into 'Tech'",
    ]


def test_one_class_in_two_spellings_is_nothing_to_learn(tmp_path: Path) -> None:
    train = _spelt(tmp_path / "train.csv", "yes", "Yes", "yes", "YES")
    with pytest.raises(InputError, match="every row has the same label, 'yes'"):
        prepared(train, merge_labels=True)
