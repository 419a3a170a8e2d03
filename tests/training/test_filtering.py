"""The examples that a run with threshold samples trains on. What comes of it: see test_surveying."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.data import Examples
from calmix.dynamics import Dynamics, Relabelling
from calmix.errors import InputError
from calmix.training.filtering import check_enough, judge, with_fake_class


def fake(rows: list[int], labels: list[int]) -> Relabelling:
    return Relabelling(np.array(rows), np.array(labels))


@pytest.mark.parametrize("kind", ["text", "pair"])
def test_classes_get_one_more_and_texts_stay(kind: str) -> None:
    examples = tiny.examples(6, kind=kind)
    changed = with_fake_class(examples, fake([1, 4], [3, 3]))
    assert changed.table.equals(examples.table)
    assert changed.label_names == (*examples.label_names, "(threshold sample)")
    assert changed.labels.tolist() == [0, 3, 2, 0, 3, 2]
    assert changed.targets is None


def test_choices_get_one_more_each_which_is_empty() -> None:
    examples = tiny.examples(4, kind="choices", counts=(2, 3))
    changed = with_fake_class(examples, fake([0, 3], [2, 3]))
    assert changed.choice_counts is not None
    assert changed.choice_counts.tolist() == [3, 4, 3, 4]
    assert changed.column("choices") == [[*given, ""] for given in examples.column("choices")]
    assert changed.labels.tolist() == [2, examples.labels[1], examples.labels[2], 3]
    assert changed.ids == examples.ids


@pytest.mark.parametrize(
    ("examples", "enough"),
    [
        (tiny.examples(10), False),
        (tiny.examples(11), True),
        (tiny.examples(7, kind="choices", counts=(2, 5)), False),
        (tiny.examples(8, kind="choices", counts=(2, 5)), True),
    ],
)
def test_a_region_must_hold_a_threshold_sample(examples: Examples, enough: bool) -> None:
    check_enough(examples, 0.5)
    if enough:
        check_enough(examples, 0.33)
    else:
        with pytest.raises(InputError, match="too few for --filter"):
            check_enough(examples, 0.33)


def test_an_easy_third_of_which_nobody_can_be_spared_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    examples = tiny.examples(9, kind="choices", counts=(2, 3, 4))
    logits = np.zeros((1, 9, 4))
    logits[0, range(9), examples.labels] = np.arange(9, 0, -1)  # the easiest are one of each size
    seen = Dynamics.from_logits(logits, examples.labels, ids=examples.ids)

    def never(*_: Any) -> Dynamics:
        raise AssertionError("nothing is to be trained")

    with pytest.raises(InputError, match="too few easy samples with equally many choices"):
        judge(examples, seen, "easy", tmp_path, 80.0, 0, never, fraction=0.33)
