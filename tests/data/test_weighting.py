"""How much each class counts."""

from typing import Any

import numpy as np
import pytest
import tiny

from calmix.data import Examples
from calmix.data.weighting import class_weights_of
from calmix.errors import InputError

LABELLED = Examples.from_texts(list("abcdefgh"), ["x"] * 4 + ["y"] * 3 + ["z"])


def test_balanced_weights_give_each_class_the_same_total_and_have_mean_1() -> None:
    weights = class_weights_of(LABELLED, "balanced")
    assert weights is not None
    np.testing.assert_allclose(weights * [4, 3, 1], [8 / 3] * 3)
    assert weights[LABELLED.labels].mean() == pytest.approx(1)


def test_weights_by_name_keep_their_ratio_and_have_mean_1() -> None:
    weights = class_weights_of(LABELLED, {"z": 5})
    assert weights is not None
    np.testing.assert_allclose(weights / weights[0], [1, 1, 5])
    assert weights[LABELLED.labels].mean() == pytest.approx(1)


def test_soft_targets_count_by_their_shares() -> None:
    targets = np.array([[0.5, 0.5, 0.0]] * 8)
    soft = Examples(LABELLED.table, np.zeros(8, dtype=np.int64), LABELLED.label_names, targets)
    np.testing.assert_allclose(np.asarray(class_weights_of(soft, "balanced")), [1, 1, 0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("heavy", "'balanced' or one number per label, not 'heavy'"),
        ({"w": 1.0}, "class weights name 'w', which is not a label"),
        ({"x": -1.0}, "must be numbers, 0 or above"),
        ({"x": float("nan")}, "must be numbers, 0 or above"),
        ({"x": 0, "y": 0, "z": 0}, "are 0 for every label that occurs"),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        class_weights_of(LABELLED, weights)


def test_choices_have_no_classes_to_weigh() -> None:
    with pytest.raises(InputError, match="multiple-choice data has none"):
        class_weights_of(tiny.examples(4, kind="choices"), "balanced")
    assert class_weights_of(tiny.examples(4, kind="choices"), None) is None
