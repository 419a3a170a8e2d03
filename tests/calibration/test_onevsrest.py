import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from calmix.calibration.onevsrest import pool_adjacent_violators
from calmix.errors import InputError
from calmix.metrics import accuracy, brier, ece, nll
from calmix.recalibration import Histogram, Isotonic

KINDS = [Isotonic, Histogram]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=60))
def test_pooling_equals_scikit_learn(pairs):
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    means, starts = pool_adjacent_violators(values, weights)
    ours = np.repeat(means, np.diff(np.append(starts, len(values))))
    theirs = IsotonicRegression().fit(np.arange(len(values)), values, sample_weight=weights)
    assert ours == pytest.approx(theirs.predict(np.arange(len(values))), abs=1e-9)


def test_pooling_many_rows_takes_no_loop_over_rows():
    rng = np.random.default_rng(0)
    rising = np.sort(rng.random(100_000))
    means, _ = pool_adjacent_violators((rng.random(100_000) < rising).astype(float), np.ones(100_000))
    assert (np.diff(means) > 0).all()


def test_isotonic_equals_scikit_learn_class_by_class(draw):
    logits, probs, labels = draw(0, 500)
    new, _, _ = draw(1, 200)
    expected = []
    for k in range(3):
        curve = IsotonicRegression(out_of_bounds="clip").fit(probs[:, k], labels == k)
        expected.append(curve.predict(softmax(new, 1)[:, k]))
    # scikit-learn lets a class that was never seen in some stretch have probability 0.
    expected = np.stack(expected, 1).clip(min=1 / 502)
    assert Isotonic.fit(logits, labels)(new) == pytest.approx(expected / expected.sum(1, keepdims=True), abs=1e-9)


def test_histogram_gives_the_frequency_of_the_bin():
    p = np.array([0.1, 0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.9])
    labels = np.array([0, 0, 0, 1, 0, 1, 1, 1])
    logits = np.log(np.stack([1 - p, p], 1))
    fitted = Histogram.fit(logits, labels, bins=2)
    # Of the rows and of p(1 - p) the lowest four hold 0.50 and 0.44, less than half in the mean; five 0.63 and 0.63.
    assert fitted.edges[1] == pytest.approx((0.6,))
    assert fitted.frequencies == ((0.25, 0.75), (0.2, 1.0))
    assert fitted(logits)[:, 1] == pytest.approx([0.2 / 0.95] * 4 + [0.2 / 0.45] + [1 / 1.25] * 3)
    assert sum(len(f) for f in Histogram.fit(np.zeros((5, 2)), labels[:5]).frequencies) == 2


def test_the_bins_of_two_alike_classes_are_equally_full():
    p = np.arange(1, 100) / 100
    fitted = Histogram.fit(np.log(np.stack([1 - p, p], 1)), np.zeros(99, int), bins=1)
    assert fitted.edges == ((), ())
    even = Histogram.fit(np.zeros((60, 2)), np.arange(60) % 2)
    assert even.frequencies == ((0.5,), (0.5,))


def a_record(seed, classes=100, rows=10_000):
    """Logits of a model that is right nine times in ten, and too sure."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes))
    logits[np.arange(rows), labels] += 10 * rng.gamma(2.0, 0.5, rows)
    return 2 * logits, labels


@pytest.mark.parametrize("kind", KINDS)
def test_with_many_classes_predictions_stay_about_as_right_as_they_were(kind):
    logits, labels = a_record(0)
    new, new_labels = a_record(1)
    before = accuracy(softmax(new, 1), new_labels)
    assert 0.88 < before < 0.92
    assert accuracy(kind.fit(logits, labels)(new), new_labels) > before - 0.025


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_exists_is_impossible(kind, draw):
    logits, _, labels = draw(6, 60, scale=8)
    surprises = (labels + 1) % 3
    assert np.isfinite(nll(kind.fit(logits, labels)(logits), surprises))


@pytest.mark.parametrize("kind", KINDS)
def test_it_mends_a_bent_model(kind, draw):
    logits, _, labels = draw(2, 20_000)
    bent = np.sign(logits) * logits**2
    new, _, new_labels = draw(3, 20_000)
    new_bent = np.sign(new) * new**2
    fixed, before = kind.fit(bent, labels)(new_bent), softmax(new_bent, 1)
    assert ece(fixed, new_labels) < ece(before, new_labels) / 2
    assert brier(fixed, new_labels) < brier(before, new_labels)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stay_distributions_and_missing_choices_stay_missing(kind, draw):
    logits, _, labels = draw(4, 100, classes=4)
    logits[:, 3] = -np.inf
    labels = labels % 3
    fitted = kind.fit(logits, labels)
    for new in (logits, draw(5, 50, classes=4, scale=30)[0]):
        probs = fitted(new)
        assert probs.sum(1) == pytest.approx(np.ones(len(new)))
        assert (probs[np.isneginf(new)] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_json_and_wrong_input(kind, draw):
    logits, _, labels = draw(6, 100)
    fitted = kind.fit(torch.tensor(logits), torch.tensor(labels))
    assert fitted == kind.fit(logits, labels)
    assert torch.is_tensor(fitted(torch.tensor(logits)))
    assert kind.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    with pytest.raises(InputError, match="fitted for 3"):
        fitted(logits[:, :2])
    with pytest.raises(InputError, match=r"labels\[0\] sums to 2"):
        kind.fit(logits, 2 * softmax(logits, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_soft_targets_that_are_hard_fit_as_labels_do(kind, draw):
    logits, _, labels = draw(7, 300)
    assert kind.fit(logits, np.eye(3)[labels]) == kind.fit(logits, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_smoothed_targets_are_what_a_perfect_model_is_brought_to(kind, draw):
    logits, _, _ = draw(8, 5000, scale=8)
    smoothed = 0.85 * np.eye(3)[logits.argmax(1)] + 0.05
    sure = logits[softmax(logits, 1).max(1) > 0.99]
    found = kind.fit(logits, smoothed)(sure)
    assert found.max(1) == pytest.approx(np.full(len(sure), 0.9), abs=0.01)


def test_isotonic_equals_scikit_learn_on_targets(draw):
    logits, probs, _ = draw(9, 500)
    targets = np.random.default_rng(0).dirichlet(np.ones(3), 500)
    expected = [IsotonicRegression().fit_transform(probs[:, k], targets[:, k]) for k in range(3)]
    expected = np.stack(expected, 1).clip(min=1 / 502)
    found = Isotonic.fit(logits, targets)(logits)
    assert found == pytest.approx(expected / expected.sum(1, keepdims=True), abs=1e-9)
