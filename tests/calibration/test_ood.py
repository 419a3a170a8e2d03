import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from calmix.errors import InputError
from calmix.metrics import familiarity, fpr95, ood_aupr, ood_auroc, ood_auroc_interval

scores = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(-5, 5), min_size=1, max_size=40)


@given(scores, scores)
def test_areas_equal_scikit_learn_ties_included(inside, outside):
    inside, outside = np.array(inside), np.array(outside)
    y, s = np.r_[np.ones(len(inside)), np.zeros(len(outside))], np.r_[inside, outside]
    assert ood_auroc(inside, outside) == pytest.approx(roc_auc_score(y, s), abs=1e-9)
    assert ood_aupr(inside, outside, positive="in") == pytest.approx(average_precision_score(y, s), abs=1e-9)
    assert ood_aupr(inside, outside) == pytest.approx(average_precision_score(1 - y, -s), abs=1e-9)


@given(scores, scores)
def test_fpr95_is_the_first_point_of_the_roc_curve_at_95_percent(inside, outside):
    y, s = np.r_[np.ones(len(inside)), np.zeros(len(outside))], np.r_[inside, outside]
    false, true, _ = roc_curve(y, s, drop_intermediate=False)
    enough = true * len(inside) >= 0.95 * len(inside) - 1e-9
    assert fpr95(np.array(inside), np.array(outside)) == pytest.approx(false[enough][0], abs=1e-9)


@given(scores, scores)
def test_auroc_of_the_other_side_is_its_complement(inside, outside):
    a, b = np.array(inside), np.array(outside)
    assert ood_auroc(a, b) + ood_auroc(b, a) == pytest.approx(1, abs=1e-12)


def test_tensors_and_integers_will_do():
    assert ood_auroc(torch.tensor([3, 2]), torch.tensor([1, 0])) == 1
    assert fpr95(torch.tensor([3, 2]), torch.tensor([1, 0])) == 0


@pytest.mark.parametrize("bad", [np.array([]), np.zeros((2, 2)), np.array([0.0, np.nan])])
def test_scores_that_cannot_be_ranked_are_errors(bad):
    for metric in (ood_auroc, ood_aupr, fpr95):
        with pytest.raises(InputError, match="scores_out"):
            metric(np.array([1.0]), bad)


def test_an_unknown_side_is_an_error():
    with pytest.raises(InputError, match="positive"):
        ood_aupr(np.array([1.0]), np.array([0.0]), positive="both")


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=20))
def test_familiarity_scores_are_what_they_are_called(rows):
    logits = np.array(rows)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = familiarity(probs, logits)
    ranked = np.sort(probs, axis=1)
    np.testing.assert_allclose(found["max_probability"], ranked[:, -1])
    np.testing.assert_allclose(found["margin"], ranked[:, -1] - ranked[:, -2], atol=1e-12)
    np.testing.assert_allclose(found["negative_entropy"], (probs * np.log(probs)).sum(1), atol=1e-12)
    np.testing.assert_allclose(found["negative_energy"], np.log(np.exp(logits).sum(1)), atol=1e-9)
    assert "negative_energy" not in familiarity(probs)


def test_choices_that_are_not_there_have_no_part_in_a_score():
    found = familiarity(np.array([[0.75, 0.25, 0.0]]), np.array([[np.log(3.0), 0.0, -np.inf]]))
    assert found["negative_energy"][0] == pytest.approx(np.log(4))
    assert found["negative_entropy"][0] == pytest.approx(0.75 * np.log(0.75) + 0.25 * np.log(0.25))


@pytest.mark.parametrize(
    ("probs", "logits", "says"),
    [
        ([[np.nan, 1.0]], None, r"^probs\[0\] holds NaN"),
        ([[2.0, -1.0]], None, r"^probs\[0\] holds -1, a negative number; pass probabilities"),
        ([[2.0, 1.0]], None, r"^probs\[0\] sums to 3, not 1; pass probabilities"),
        ([0.5, 0.5], None, r"^probs has shape \(2,\)"),
        ([], None, r"^probs has shape \(0,\)"),
        (0.5, None, r"^probs has shape \(\)"),
        ([["a", "b"]], None, r"^probs has dtype"),
        ([[0.5, 0.5]], [[np.nan, 1.0]], r"^logits\[0\] holds NaN"),
        ([[0.5, 0.5]], [0.0, 1.0], r"^logits has shape \(2,\)"),
        ([[0.5, 0.5]], [[0.0, 1.0]] * 2, r"^logits has shape \(2, 2\) and probs \(1, 2\)"),
    ],
)
def test_familiarity_of_what_are_no_probabilities_or_logits_is_refused(probs, logits, says):
    with pytest.raises(InputError, match=says):
        familiarity(np.array(probs), None if logits is None else np.array(logits))


def test_the_interval_of_the_auroc_is_that_of_the_bootstrap():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 400), rng.normal(0, 1.5, 300)
    drawn = [ood_auroc(rng.choice(inside, 400), rng.choice(outside, 300)) for _ in range(2000)]
    found = ood_auroc_interval(inside, outside)
    assert found.estimate == ood_auroc(inside, outside)
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=0.005)
    perfect = ood_auroc_interval(inside + 100, outside)
    assert (perfect.low, perfect.high) == (1, 1)
    assert ood_auroc_interval(np.array([1.0]), np.array([0.0])).low < 0.5
