import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st

from calmix.errors import InputError
from calmix.metrics import accuracy, brier, macro_f1, mcc, nll, truth_distance

METRICS = [accuracy, brier, macro_f1, mcc, nll]


def reference(probs, labels):
    """Each score one row at a time, in float64."""
    p, rows, classes = probs.astype(np.float64), len(probs), probs.shape[1]
    best = [row.index(max(row)) for row in p.tolist()]
    gaps = [sum((p[i, k] - (labels[i] == k)) ** 2 for k in range(classes)) for i in range(rows)]
    likely = [math.inf if p[i, labels[i]] == 0 else -math.log(p[i, labels[i]]) for i in range(rows)]
    scores = []
    for k in range(classes):
        right = sum(b == y == k for b, y in zip(best, labels, strict=True))
        seen = best.count(k) + int((labels == k).sum())
        if seen:
            scores.append(2 * right / seen)
    return {
        accuracy: sum(b == y for b, y in zip(best, labels, strict=True)) / rows,
        brier: sum(gaps) / rows,
        nll: sum(likely) / rows,
        macro_f1: sum(scores) / len(scores),
    }


@given(st.data())
def test_scores_equal_the_loop(awkward, data):
    probs, labels = data.draw(awkward)
    for metric, expected in reference(probs, labels).items():
        assert metric(probs, labels) == pytest.approx(expected, abs=1e-9), metric.__name__


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.data())
def test_class_scores_equal_scikit_learn(awkward, data):
    probs, labels = data.draw(awkward)
    best = probs.argmax(1)
    assert mcc(probs, labels) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, best), abs=1e-9)
    assert macro_f1(probs, labels) == pytest.approx(
        sklearn.metrics.f1_score(labels, best, average="macro", zero_division=0), abs=1e-9
    )


def test_probability_scores_equal_scikit_learn(draw):
    _, probs, labels = draw(0, 2000)
    assert nll(probs, labels) == pytest.approx(sklearn.metrics.log_loss(labels, probs), abs=1e-9)
    assert brier(probs, labels) == pytest.approx(
        sklearn.metrics.brier_score_loss(labels, probs, scale_by_half=False), abs=1e-9
    )
    assert brier(probs, labels, positive_class=1) == pytest.approx(
        sklearn.metrics.brier_score_loss(labels == 1, probs[:, 1]), abs=1e-9
    )


@pytest.mark.parametrize("metric", METRICS)
def test_order_of_rows_and_names_of_classes_do_not_matter(metric, draw):
    _, probs, labels = draw(1, 300)
    rng = np.random.default_rng(0)
    rows, classes = rng.permutation(300), rng.permutation(3)
    moved = metric(probs[rows][:, classes], np.argsort(classes)[labels[rows]])
    assert moved == pytest.approx(metric(probs, labels), abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_numpy_and_torch_agree(metric, draw):
    _, probs, labels = draw(2, 300)
    assert metric(torch.tensor(probs), torch.tensor(labels)) == metric(probs, labels)


def test_soft_targets_that_are_hard_score_as_labels_do(draw):
    _, probs, labels = draw(3, 300)
    for metric in (nll, brier):
        assert metric(probs, np.eye(3)[labels]) == pytest.approx(metric(probs, labels), abs=1e-12)


def test_the_true_distribution_has_the_lowest_expected_nll(draw, sharpen):
    _, probs, _ = draw(4, 300)
    assert nll(probs, probs) < nll(sharpen(probs, 1.2), probs)
    assert brier(probs, probs) == 0


def test_a_label_thought_impossible_costs_infinitely_much():
    assert nll(np.array([[1.0, 0.0]]), np.array([1])) == math.inf


def test_mcc_of_constant_predictions_is_zero():
    assert mcc(np.array([[0.9, 0.1]] * 4), np.array([0, 1, 0, 1])) == 0


def test_truth_distance_is_total_variation():
    probs, truth = np.array([[0.9, 0.1, 0], [0.2, 0.2, 0.6]]), np.array([[0.7, 0.1, 0.2], [0.2, 0.2, 0.6]])
    assert truth_distance(probs, truth) == pytest.approx(0.1)
    assert truth_distance(probs, probs) == 0
    assert truth_distance(probs, truth) == pytest.approx(truth_distance(truth, probs))
    with pytest.raises(InputError, match="true_probs"):
        truth_distance(probs, np.array([0, 1]))
