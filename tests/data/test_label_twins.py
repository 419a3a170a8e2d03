"""Labels that differ in case or blanks alone: found, refused, made one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.data import Examples, read_examples
from calmix.data.label_twins import Renamed, merged_labels, merging_line, settled_labels, twin_labels
from calmix.errors import InputError


def of(*labels: str, **more: Any) -> Examples:
    return Examples.from_texts([f"text {i}" for i in range(len(labels))], list(labels), **more)


def spelt(examples: Examples) -> list[str]:
    return [examples.label_names[k] for k in examples.labels]


def twins(examples: Examples) -> list[list[str]]:
    return [[examples.label_names[k] for k in group] for group in twin_labels(examples)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("billing", "Billing", True),
        ("Account access", "account  access", True),
        ("Account access", "AccountAccess", True),
        ("STRASSE", "straße", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("billing", "bill-ing", False),
        ("1", "01", False),
        ("café", "cafe", False),
    ],
)
def test_twins_differ_in_case_blanks_or_composition_alone(one: str, other: str, same: bool) -> None:
    assert twins(of(one, other, other, "x")) == ([[other, one]] if same else [])


def test_a_spelling_that_no_row_has_is_no_twin() -> None:
    assert twins(of("a", "b", "b", label_names=["a", "A", "b"])) == []
    assert twins(of("a", "A", "b", label_names=["a", "A", "b"])) == [["a", "A"]]


def test_choices_have_no_labels_to_differ() -> None:
    examples = tiny.examples(6, kind="choices")
    assert twin_labels(examples) == []
    assert merged_labels(examples) == (examples, [])


def test_the_commonest_spelling_wins_and_of_several_the_first() -> None:
    merged, renamed = merged_labels(of("b", "A", "a", "a", "B", "c"))
    assert merged.label_names == ("B", "a", "c")
    assert spelt(merged) == ["B", "a", "a", "a", "B", "c"]
    assert renamed == [Renamed("A", "a", 1), Renamed("b", "B", 1)]


def test_data_without_twins_stays_the_same_object() -> None:
    examples = of("a", "b", "a")
    assert merged_labels(examples)[0] is examples
    assert merged_labels(examples, known=("a", "b", "c"))[0] is examples


def test_known_names_win_over_common_ones_and_give_the_order() -> None:
    merged, renamed = merged_labels(of("x", "a", "a", "Z"), known=("z", "A"))
    assert merged.label_names == ("z", "A", "x")
    assert spelt(merged) == ["x", "A", "A", "z"]
    assert [(each.old, each.new) for each in renamed] == [("Z", "z"), ("a", "A")]
    both, renamed = merged_labels(of("a", "A"), known=("a", "A"))
    assert (spelt(both), renamed) == (["a", "A"], [])


def test_rows_without_a_label_stay_without() -> None:
    examples = of("a", "A", "A")
    merged, _ = merged_labels(replace(examples, labels=np.where([True, False, False], -1, examples.labels)))
    assert (merged.labels.tolist(), merged.label_names) == ([-1, 0, 0], ("A",))


def test_votes_for_twins_are_added_and_the_label_is_the_one_with_most() -> None:
    targets = np.array([[0.3, 0.3, 0.4], [0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    examples = replace(of("a", "A", "b"), label_names=("A", "a", "b"), labels=np.array([2, 2, 0]), targets=targets)
    merged, _ = merged_labels(examples)
    assert merged.label_names == ("A", "b")
    assert merged.targets is not None
    np.testing.assert_allclose(merged.targets, [[0.6, 0.4], [0.3, 0.7], [1, 0]])
    assert spelt(merged) == ["A", "b", "A"]


def test_twins_are_refused_in_one_line_with_their_rows_and_what_to_do() -> None:
    examples = replace(of("billing", *["Billing"] * 3, "other"), source="tickets.csv")
    with pytest.raises(InputError) as refused:
        settled_labels(examples, None)
    assert str(refused.value) == (
        "tickets.csv: labels differ in case or blanks alone: 'billing' (1 row) and 'Billing' (3 rows); --merge-labels "
        "makes one of each, the commonest spelling; --keep-labels trains them as different (in Python: "
        "merge_labels=True or False)"
    )


def test_of_many_twins_three_are_named_and_the_others_counted() -> None:
    examples = of(*(spelling for letter in "abcde" for spelling in (letter, letter.upper())))
    with pytest.raises(InputError) as refused:
        settled_labels(examples, None)
    assert "'c' (1 row) and 'C' (1 row), and 2 more; " in str(refused.value)
    assert "'d'" not in str(refused.value)
    _, renamed = merged_labels(examples)
    assert merging_line("train", renamed) == (
        "train: merged labels of 5 rows: 'a' (1 row) into 'A', 'b' (1 row) into 'B', 'c' (1 row) into 'C', and 2 more"
    )


def test_who_says_what_to_do_is_not_stopped() -> None:
    examples = of("a", "A", "A", "b")
    assert settled_labels(examples, False) == (examples, [])
    merged, renamed = settled_labels(examples, True)
    assert merged.label_names == ("A", "b")
    assert merging_line("train", renamed) == "train: merged labels of 1 row: 'a' (1 row) into 'A'"
    assert settled_labels(of("a", "b"), None)[1] == []


@pytest.mark.parametrize("votes", [False, True])
def test_another_file_is_read_with_its_own_spellings_after_those_known(tmp_path: Path, votes: bool) -> None:
    file = tmp_path / "dev.jsonl"
    rows = [{"text": f"t {k}", "label": name, "votes": {name: 2}} for k, name in enumerate(["BILLING", "tech", "Tech"])]
    file.write_text("\n".join(map(json.dumps, rows)))
    known = ("Tech", "Billing")
    asked: dict[str, Any] = {"votes": "votes"} if votes else {}
    with pytest.raises(InputError, match="unknown label 'BILLING'"):
        read_examples(file, label_names=known, **asked)
    examples = read_examples(file, label_names=known, spelt_alike=True, **asked)
    assert examples.label_names == (*known, "BILLING", "tech")
    assert spelt(merged_labels(examples, known=known)[0]) == ["Billing", "Tech", "Tech"]
    with pytest.raises(InputError, match="unknown label 'tech'"):
        read_examples(file, label_names=("Billing",), spelt_alike=True, **asked)


def test_folders_of_images_may_be_spelt_otherwise_too(tmp_path: Path) -> None:
    folder = tiny.image_folder(tmp_path / "images", 6)
    (folder / "food").rename(folder / "Food")
    examples = read_examples(folder, label_names=tiny.LABELS, spelt_alike=True)
    assert examples.label_names == (*tiny.LABELS, "Food")
