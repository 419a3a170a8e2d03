"""The examples that a run with threshold samples trains on. What comes of it: see test_surveying."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.data import Examples
from calmix.dynamics import Dynamics, Relabelling, easy_and_ambiguous
from calmix.errors import InputError
from calmix.training.filtering import Filter, FilterCount, filter_notes, judge, with_fake_class


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
    Filter(fraction=0.5).check(examples)
    if enough:
        Filter().check(examples)
    else:
        with pytest.raises(InputError, match="too few for --filter"):
            Filter().check(examples)


def test_an_easy_third_of_which_nobody_can_be_spared_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    examples = tiny.examples(9, kind="choices", counts=(2, 3, 4))
    logits = np.zeros((1, 9, 4))
    logits[0, range(9), examples.labels] = np.arange(9, 0, -1)  # the easiest are one of each size
    seen = Dynamics.from_logits(logits, examples.labels, ids=examples.ids)

    def never(*_: Any) -> Dynamics:
        raise AssertionError("nothing is to be trained")

    with pytest.raises(InputError, match="too few easy samples with equally many choices"):
        judge(examples, seen, Filter(), tmp_path, 0, never)


def trained(data: Examples, wrong: float, right: float) -> Dynamics:
    """Return dynamics in which every threshold sample has one AUM, every other sample another."""
    logits = np.zeros((1, len(data), len(data.label_names)))
    fake = data.labels == len(data.label_names) - 1
    logits[0, np.arange(len(data)), data.labels] = np.where(fake, wrong, right)
    return Dynamics.from_logits(logits, data.labels, ids=data.ids, label_names=data.label_names)


@pytest.mark.parametrize(("on", "rows"), [("region", 30), ("all", 90)])
def test_runs_with_threshold_samples_see_the_region_alone_unless_told_otherwise(
    tmp_path: Path, on: Any, rows: int
) -> None:
    examples = tiny.examples(90)
    logits = np.zeros((2, 90, 3))
    logits[:, np.arange(90), examples.labels] = np.arange(90) % 7
    dynamics = Dynamics.from_logits(logits, examples.labels, ids=examples.ids)
    easy, _ = easy_and_ambiguous(dynamics, fraction=1 / 3)
    asked: list[Examples] = []

    def recorded(data: Examples, *_: Any) -> Dynamics:
        asked.append(data)
        return trained(data, wrong=1, right=2)

    verdicts, counts = judge(examples, dynamics, Filter(fraction=1 / 3, on=on), tmp_path, 0, recorded)
    assert [len(data) for data in asked] == [rows, rows]
    inside = {examples.ids[row] for row in easy}
    for data in asked:
        fake = {name for name, label in zip(data.ids, data.labels, strict=True) if label == 3}
        assert len(fake) == 30 // 4
        assert fake <= inside
        assert set(data.ids) == (inside if on == "region" else set(examples.ids))
    assert np.flatnonzero(verdicts.judged).tolist() == easy.tolist()
    assert not verdicts.dropped.any()
    assert counts == [FilterCount("easy", judged=30, dropped=0, runs=2)]


def test_as_worded_every_sample_of_the_region_is_judged_by_one_of_c_plus_1_runs(tmp_path: Path) -> None:
    examples = tiny.examples(90)
    logits = np.zeros((2, 90, 3))
    logits[:, np.arange(90), examples.labels] = np.arange(90) % 7
    dynamics = Dynamics.from_logits(logits, examples.labels, ids=examples.ids)
    known = dict(zip(examples.ids, examples.labels, strict=True))

    def recorded(data: Examples, *_: Any) -> Dynamics:
        given = np.array([known[name] for name in data.ids])
        scores = np.zeros((1, len(data), 4))
        # Threshold samples are believed; of those with their own label, the first class is not.
        scores[0, np.arange(len(data)), data.labels] = np.where((data.labels == given) & (given == 0), -1, 1)
        return Dynamics.from_logits(scores, data.labels, ids=data.ids)

    by = Filter(judged="both", fraction=1 / 3, wording="literal")
    verdicts, counts = judge(examples, dynamics, by, tmp_path, 0, recorded)
    assert [(one.region, one.judged, one.runs) for one in counts] == [("easy", 30, 4), ("ambiguous", 30, 4)]
    assert verdicts.dropped.tolist() == (verdicts.judged & (examples.labels == 0)).tolist()
    assert sum(one.dropped for one in counts) == verdicts.dropped.sum() > 0
    # Of one class nothing is left: that is said.
    assert [one.labels_lost for one in counts] == [(examples.label_names[0],)] * 2
    said = f"every easy sample with the label {examples.label_names[0]!r} is dropped"
    assert [said in note for note in filter_notes(counts)] == [True, False]


@pytest.mark.parametrize(
    ("dropped", "said"),
    [(0, "none of the 1,200 easy samples is dropped"), (1, None), (1200, "all 1,200 easy samples are dropped")],
)
def test_a_filter_that_drops_nobody_or_everybody_is_told(dropped: int, said: str | None) -> None:
    notes = filter_notes([FilterCount("easy", judged=1200, dropped=dropped, runs=2)])
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]
