"""Tasks as data."""

from dataclasses import replace
from typing import Any

import pytest

from calmix.data.tasks import Part, builtin_tasks, parse_task
from calmix.errors import InputError


def test_every_task_that_is_shipped_can_be_read() -> None:
    tasks = {name: parse_task(name, values, name) for name, values in builtin_tasks().items()}
    assert {"desk", "snli", "qqp", "swag", "goemotions", "yelp", "epitome", "imdb", "cola", "trec"} <= set(tasks)
    assert tasks["snli"].ood["mnli"].hub == "nyu-mll/glue:mnli"
    assert tasks["cola"].figure == "mcc"
    assert tasks["imdb"].dev_from_test == 3200
    # Multiple labels are drawn from in the training domain; the other has single ones.
    assert tasks["goemotions"].train.several == "+"
    assert tasks["goemotions"].ood["meld"].several == ""


def test_few_samples_of_a_task_are_the_task_in_all_else() -> None:
    tasks = {name: parse_task("", values, name) for name, values in builtin_tasks().items()}
    for few, whole, samples in (("imdb-32", "imdb", 32), ("ag-news-32", "ag-news", 32), ("sst2-64", "sst2", 64)):
        assert tasks[few] == replace(tasks[whole], samples=samples)


def test_a_task_needs_two_lines() -> None:
    task = parse_task("mine", {"train": "a.csv", "test": {"file": "b.csv", "labels": {"yes": ["1"]}}}, "here")
    assert task.train == Part("a.csv")
    assert task.test == Part("b.csv", labels={"yes": ("1",)})
    assert task.dev is None


def test_what_is_said_of_a_task_holds_for_its_parts_and_a_part_may_say_otherwise() -> None:
    values = {
        "train": "a",
        "test": {"file": "b", "columns": {"text": "other"}},
        "columns": {"text": "t"},
        "labels": {"x": ["y"]},
        "several": "+",
        "ood": {"far": "c"},
    }
    task = parse_task("mine", values, "here")
    assert task.train.columns == {"text": "t"}
    assert task.test.columns == {"text": "other"}
    assert task.test.labels == task.ood["far"].labels == {"x": ("y",)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tset": "x"}, "unknown key 'tset'; did you mean 'test'?"),
        ({"train": {"flie": "x"}}, "here.train: unknown key 'flie'; did you mean 'file'?"),
        ({"train": {}}, "here.train: needs the name of a file"),
        ({"train": 3}, "here.train: must be a table"),
        ({"rows": -1}, "here.rows: must be a whole number from 0"),
        ({"rows": 3, "samples": 3}, "has rows (drawn once) and samples"),
        ({"dev": "d", "dev_from_test": 3}, "has dev and dev_from_test"),
        ({"figure": "speed"}, "here.figure: is one of accuracy"),
        ({"labels": {"x": "y"}}, "list the labels that become 'x'"),
        ({"columns": {"txt": "y"}}, "unknown key 'txt'; did you mean 'text'?"),
        ({"ood": {"../up": "y"}}, "must be letters"),
    ],
)
def test_what_means_nothing_is_refused_with_what_was_probably_meant(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_task("mine", {"train": "a", "test": "b", **changes}, "here")
    assert words in str(refused.value)


@pytest.mark.parametrize("missing", ["train", "test"])
def test_a_missing_part_is_named(missing: str) -> None:
    values = {name: "x" for name in ("train", "test") if name != missing}
    with pytest.raises(InputError, match=f"says nothing about '{missing}'"):
        parse_task("mine", values, "here")
