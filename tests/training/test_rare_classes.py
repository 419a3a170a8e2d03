"""Which classes are rare, and how they fare."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import precision_score, recall_score

from calmix.training.rare_classes import rare_classes


def labelled(*counts: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize(
    ("counts", "rare"),
    [
        ((980, 20), [1]),
        ((840, 160), [1]),  # below a third of a half
        ((830, 170), []),
        ((500, 400, 100), [2]),
        ((450, 430, 120), []),
        ((100,) * 20, []),  # a twentieth each, and as many as there should be
        ((200,) * 9 + (80,), [9]),  # a twentieth is more than a third of an equal share here
        ((10,) * 149 + (4,), [149]),
        ((10,) * 149 + (6,), []),
        ((990, 10, 0), [1]),  # what has no rows has no recall
    ],
)
def test_a_class_is_rare_by_its_share_of_the_rows_and_of_the_classes(counts: tuple[int, ...], rare: list[int]) -> None:
    labels, classes = labelled(*counts), len(counts)
    found = rare_classes(np.eye(classes)[labels], labels, [f"c{k}" for k in range(classes)])
    assert [one["label"] for one in found] == [f"c{k}" for k in rare]
    assert [one["rows"] for one in found] == [counts[k] for k in rare]


def test_recall_and_precision_are_scikit_learns_and_the_worst_comes_first() -> None:
    rng = np.random.default_rng(0)
    labels = labelled(500, 12, 9, 10)
    predicted = np.where(rng.random(len(labels)) < 0.4, rng.integers(0, 4, len(labels)), labels)
    predicted[labels == 3] = 0
    predicted[predicted == 3] = 0
    found = rare_classes(np.eye(4)[predicted], labels, list("abcd"))
    recall = recall_score(labels, predicted, average=None, zero_division=0)
    precision = precision_score(labels, predicted, average=None, zero_division=0)
    assert {one["label"] for one in found} == set("bcd")
    assert [one["recall"] for one in found] == sorted(one["recall"] for one in found)
    assert found[0] == {"label": "d", "rows": 10, "recall": 0.0, "precision": None}  # never said
    for one in found[1:]:
        k = "abcd".index(one["label"])
        assert (one["recall"], one["precision"]) == (pytest.approx(recall[k]), pytest.approx(precision[k]))


def test_choices_are_no_classes() -> None:
    assert rare_classes(np.eye(2)[[0, 0, 1]], np.array([0, 0, 1]), ()) == []
