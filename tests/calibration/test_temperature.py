import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.calibration import _TemperatureScaling
from sklearn.metrics import roc_auc_score

from calmix.errors import InputError
from calmix.metrics import accuracy, nll
from calmix.recalibration import Temperature


def at(logits, labels, temperature):
    return -log_softmax(logits / temperature, 1)[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("factor", [0.05, 0.2, 1, 5, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_known_factor_is_recovered_within_one_percent(draw, factor, dtype):
    logits, _, labels = draw(0, 60_000)
    found = Temperature.fit((logits * factor).astype(dtype), labels).temperature
    assert found == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize("factor", [0.05, 1, 20])
def test_it_is_the_optimum_to_eight_digits(draw, factor):
    logits, _, labels = draw(1, 500)
    found = Temperature.fit(logits * factor, labels).temperature
    best = minimize_scalar(lambda u: at(logits * factor, labels, math.exp(u)), bracket=(-3, 3), tol=1e-10)
    assert found == pytest.approx(math.exp(best.x), rel=1e-6)
    slope = at(logits * factor, labels, found * 1.0001) + at(logits * factor, labels, found / 1.0001)
    assert slope / 2 >= at(logits * factor, labels, found)


@pytest.mark.parametrize("factor", [0.02, 0.5, 1, 3])
def test_it_is_where_a_grid_search_in_steps_of_a_hundredth_ends(draw, factor):
    logits, _, labels = draw(2, 400)
    grid = np.arange(1, 501) / 100
    best = grid[np.argmin([at(logits * factor, labels, t) for t in grid])]
    assert Temperature.fit(logits * factor, labels).temperature == pytest.approx(best, abs=0.01)


@pytest.mark.parametrize("factor", [0.005, 8])
def test_it_does_not_stop_at_the_edge_of_that_grid(draw, factor):
    logits, _, labels = draw(3, 20_000)
    assert Temperature.fit(logits * factor, labels).temperature == pytest.approx(factor, rel=0.05)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 6), st.sampled_from([0.01, 1, 30, 1000]))
def test_predictions_stay_and_the_nll_never_rises(seed, rows, classes, scale):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(rows, classes)) * scale, rng.integers(0, classes, rows)
    fitted = Temperature.fit(logits, labels)
    assert 0 < fitted.temperature < math.inf
    probs = fitted(logits)
    assert np.array_equal(probs.argmax(1), logits.argmax(1))
    assert accuracy(probs, labels) == (logits.argmax(1) == labels).mean()
    assert at(logits, labels, fitted.temperature) <= at(logits, labels, 1) + 1e-12


@pytest.mark.parametrize("factor", [0.1, 1, 10])
def test_the_area_under_the_curve_of_two_classes_stays(draw, factor):
    logits, probs, labels = draw(10, 2000, classes=2)
    scaled = Temperature.fit(logits * factor, labels)(logits * factor)
    assert roc_auc_score(labels, scaled[:, 1]) == pytest.approx(roc_auc_score(labels, probs[:, 1]), abs=1e-12)


def test_a_perfect_model_is_sharpened_only_as_far_as_its_rows_can_vouch_for(draw):
    logits, _, _ = draw(4, 100)
    logits[np.arange(100), logits.argmax(1)] += 0.5
    labels = logits.argmax(1)
    fitted = Temperature.fit(logits, labels)
    assert nll(fitted(logits), labels) == pytest.approx(1 / 102, rel=1e-6)
    assert Temperature.fit(logits * 1000, labels).temperature == 1


def test_ties_with_the_label_do_not_keep_a_perfect_model_from_ending():
    logits = np.array([[0.1, 0.1, 0.0], [0.2, 0.0, 0.0]])
    assert 0.01 < Temperature.fit(logits, np.array([0, 0])).temperature < 1


def test_a_hopeless_model_is_flattened(draw):
    logits, _, _ = draw(5, 100)
    fitted = Temperature.fit(logits, logits.argmin(1))
    assert fitted.temperature == pytest.approx(1000, rel=1e-3)
    assert nll(fitted(logits), logits.argmin(1)) == pytest.approx(math.log(3), abs=0.01)


def test_logits_that_say_nothing_leave_the_temperature_alone():
    assert Temperature.fit(np.zeros((5, 3)), np.arange(5) % 3).temperature == 1


def test_a_choice_that_does_not_exist_changes_nothing(draw):
    logits, _, labels = draw(6, 300)
    padded = np.hstack([logits, np.full((300, 2), -np.inf)])
    assert Temperature.fit(padded, labels).temperature == pytest.approx(Temperature.fit(logits, labels).temperature)
    assert np.array_equal(Temperature(2.0)(padded)[:, 3:], np.zeros((300, 2)))


def test_soft_targets_are_fitted_in_expectation(draw):
    logits, probs, labels = draw(7, 500)
    hard = Temperature.fit(logits * 3, np.eye(3)[labels]).temperature
    assert hard == pytest.approx(Temperature.fit(logits * 3, labels).temperature, rel=1e-8)
    assert Temperature.fit(logits * 3, probs).temperature == pytest.approx(3, rel=1e-6)
    smoothed = 0.9 * np.eye(3)[logits.argmax(1)] + 0.1 / 3
    assert 0.001 < Temperature.fit(logits, smoothed).temperature < 1000


def test_a_larger_logit_scale_gives_a_larger_temperature_by_the_same_factor(draw):
    logits, _, labels = draw(8, 50_000)
    one = Temperature.fit(logits, labels).temperature
    assert Temperature.fit(logits * 7, labels).temperature == pytest.approx(7 * one, rel=1e-8)


def test_tensors_in_tensors_out(draw):
    logits, _, labels = draw(9, 100)
    fitted = Temperature.fit(torch.tensor(logits, requires_grad=True), torch.tensor(labels))
    assert fitted.temperature == Temperature.fit(logits, labels).temperature
    assert torch.is_tensor(fitted(torch.tensor(logits)))
    assert np.allclose(fitted(torch.tensor(logits)).numpy(), fitted(logits))


def test_it_survives_json():
    fitted = Temperature(1.2345678901234567)
    assert Temperature.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError):
            Temperature(bad)


def test_scikit_learn_finds_the_same_temperature(draw):
    logits, _, labels = draw(0, 2000)
    theirs = _TemperatureScaling().fit(logits * 3, labels)
    fitted = Temperature.fit(logits * 3, labels)
    assert fitted.temperature == pytest.approx(1 / theirs.beta_, rel=1e-4)
    assert accuracy(fitted(logits * 3), labels) == (logits.argmax(1) == labels).mean()


def penalised(logits, labels, expected, temperature):
    return len(labels) * at(logits, labels, temperature) + expected / temperature + math.log(temperature)


@pytest.mark.parametrize("expected", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_an_expected_temperature_counts_as_one_row(draw, rows, expected):
    logits, _, labels = draw(4, rows)
    found = Temperature.fit(logits, labels, expected=expected).temperature
    best = minimize_scalar(lambda u: penalised(logits, labels, expected, math.exp(u)), bracket=(-3, 3), tol=1e-10)
    assert found == pytest.approx(math.exp(best.x), rel=1e-5)


def test_an_expected_temperature_is_what_rows_without_a_word_on_it_end_at():
    assert Temperature.fit(np.zeros((3, 4)), [0, 1, 2], expected=1.7).temperature == pytest.approx(1.7)


def test_few_rows_end_neither_at_certainty_nor_at_nothing_where_a_temperature_is_expected():
    logits = np.array([[4.0, 0.0], [0.0, 4.0], [5.0, 0.0]])
    right, wrong = np.array([0, 1, 0]), np.array([1, 0, 1])
    sharp, flat = (Temperature.fit(logits, labels, expected=2.0).temperature for labels in (right, wrong))
    assert 0.5 < sharp < 2.0 < flat < 30
    assert Temperature.fit(logits, wrong).temperature == pytest.approx(1000)
    assert Temperature.fit(logits, right).temperature < sharp


def test_many_rows_do_not_mind_what_was_expected(draw):
    logits, _, labels = draw(5, 20_000)
    fitted = Temperature.fit(logits, labels)
    assert Temperature.fit(logits, labels, expected=5.0).temperature == pytest.approx(fitted.temperature, rel=1e-3)


@pytest.mark.parametrize("expected", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_can_be_none_is_not_expected(expected):
    with pytest.raises(InputError, match=r"expected is .*; it must be a positive number"):
        Temperature.fit(3 * np.eye(2), [0, 1], expected=expected)
