"""What rows kept for a guarantee can promise, before training and after."""

from typing import Any

import numpy as np
import pytest
import tiny

from calmix.calibration import SelectiveThreshold
from calmix.data import Examples
from calmix.training.promises import promise_figures, promise_notes


def guard(*counts: int) -> Examples:
    labels = [name for name, rows in zip("abc", counts, strict=False) for _ in range(rows)]
    return Examples.from_texts([f"text {i}" for i in range(len(labels))], labels)


@pytest.mark.parametrize(
    ("rows", "accuracy", "less"),
    [(76, 0.95, ", or ask for at most 93%"), (104, 0.999, ", or ask for at most 95%"), (6, 0.9, "")],
)
def test_rows_that_can_never_give_a_guarantee_are_said_with_what_it_takes(
    rows: int, accuracy: float, less: str
) -> None:
    (note,) = promise_notes(guard(rows // 2, rows // 2), accuracy)
    needed = {0.95: "104", 0.999: "5,296", 0.9: "51"}[accuracy]
    dev = {0.95: "208", 0.999: "10,592", 0.9: "102"}[accuracy]
    assert note == (
        f"guarantee: {100 * accuracy:g}% can never be promised from {rows} held-out rows: it takes at least {needed}, "
        f"all predicted correctly (more if any are wrong); give {dev} dev rows or more, half of which are kept for it"
        f"{less}"
    )


def test_a_guarantee_that_one_label_keeps_is_said_to_say_nothing() -> None:
    (note,) = promise_notes(guard(4, 196), 0.95)
    assert note == (
        "guarantee: 95% is kept by always answering 'b', the label of 98% of the held-out rows: such a promise says "
        "nothing; ask for more"
    )
    assert len(promise_notes(guard(1, 49), 0.95)) == 2  # and these are too few


def test_nothing_is_said_of_what_may_be_kept_or_was_not_asked_for() -> None:
    assert promise_notes(guard(52, 52), 0.95) == []
    assert promise_notes(None, None) == promise_notes(guard(2, 2), None) == []
    choices = tiny.examples(60, kind="choices", counts=(2,))
    same = Examples(choices.table, np.zeros(60, dtype=np.int64), ())
    assert promise_notes(same, 0.9) == []  # the first choice is no label


def figures(confidence: Any, right: Any, counts: tuple[int, ...], accuracy: float) -> dict[str, Any]:
    examples = guard(*counts)
    classes = len(examples.label_names)
    chosen = np.where(right, examples.labels, (examples.labels + 1) % classes)
    probs = np.full((len(examples), classes), (1 - confidence) / (classes - 1))
    probs[np.arange(len(examples)), chosen] = confidence
    threshold = SelectiveThreshold.fit(probs, examples.labels, accuracy=accuracy)
    return promise_figures(threshold, probs, examples.labels, examples.label_names)


def test_what_can_be_promised_stands_beside_what_cannot() -> None:
    right = np.arange(300) % 16 != 0  # 94 %
    found = figures(0.97, right, (150, 150), 0.95)
    assert (found["rows"], found["needed"], found["constant"]) == (300, 104, {"label": "a", "accuracy": 0.5})
    assert (found["possible"]["accuracy"], found["possible"]["coverage"]) == (0.85, 1.0)
    kept = figures(0.97, np.ones(300, dtype=bool), (150, 150), 0.95)
    assert kept["possible"] is None


def test_below_what_one_label_keeps_nothing_is_offered() -> None:
    found = figures(0.97, np.arange(300) % 10 != 0, (270, 30), 0.95)
    assert found["possible"] is None
    assert found["constant"] == {"label": "a", "accuracy": 0.9}


def test_where_one_label_keeps_what_was_asked_for_more_is_offered() -> None:
    found = figures(0.999, np.ones(2000, dtype=bool), (1940, 60), 0.95)
    assert found["possible"]["accuracy"] == 0.995


def test_of_multiple_choice_there_is_no_label_to_answer_always() -> None:
    probs = np.tile([0.6, 0.4], (20, 1))
    threshold = SelectiveThreshold.fit(probs, np.zeros(20, dtype=np.int64), accuracy=0.9)
    found = promise_figures(threshold, probs, np.zeros(20, dtype=np.int64), ())
    assert (found["rows"], found["needed"], found["constant"]) == (20, 51, None)
    assert found["possible"]["accuracy"] == 0.7
