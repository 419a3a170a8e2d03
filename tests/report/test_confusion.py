"""The confusion matrix."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from calmix.report import draw_confusion, prepare_confusion

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet(np.ones(4), 300)
LABELS = RNG.integers(0, 3, 300)
NAMES = ("a", "b", "c", "never")


def test_counts_are_sklearns() -> None:
    found = prepare_confusion(PROBS, LABELS, NAMES)
    np.testing.assert_array_equal(found.counts, confusion_matrix(LABELS, PROBS.argmax(1), labels=range(4)))
    np.testing.assert_allclose(found.shares.sum(axis=1), [1, 1, 1, 0])


def test_mistakes_come_commonest_first_and_only_mistakes() -> None:
    found = prepare_confusion(PROBS, LABELS, NAMES)
    mistakes = found.mistakes(most=100)
    assert all(label != said for label, said, _ in mistakes)
    assert sum(count for *_, count in mistakes) == (PROBS.argmax(1) != LABELS).sum()
    assert [count for *_, count in mistakes] == sorted((count for *_, count in mistakes), reverse=True)
    assert prepare_confusion(np.eye(3), np.arange(3), NAMES[:3]).mistakes() == []


@pytest.mark.parametrize("k", [2, 40])
def test_the_figure_has_a_tick_for_each_class_and_numbers_while_they_fit(k: int) -> None:
    pytest.importorskip("matplotlib")
    names = tuple(f"${i}" + "x" * 40 for i in range(k))
    figure = draw_confusion(prepare_confusion(np.eye(k), np.arange(k), names), "title")
    (axes,) = figure.axes
    assert len(axes.get_xticks()) == k
    assert len(axes.texts) == (k * k if k <= 20 else 0)
    figure.canvas.draw_idle()
