import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from calmix.errors import InputError
from calmix.metrics import fpr95, ood_aupr, ood_auroc

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
