import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtr

from calmix.calibration import SelectiveThreshold
from calmix.calibration.selective import best_within_reach, binomial_tail, highest_promise, rows_needed
from calmix.errors import InputError


@given(st.integers(0, 3000), st.integers(1, 3000), st.floats(0.001, 0.999))
def test_the_binomial_tail_equals_scipy(successes, trials, probability):
    expected = bdtr(min(successes, trials), trials, probability)  # binom.cdf is off by 1e-8 where it is below 1e-250
    assert binomial_tail(successes, trials, probability) == pytest.approx(expected, rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_promised_accuracy_is_missed_no_more_often_than_allowed(draw, sharpen, power):
    _, probs, labels = draw(999, 400_000)
    probs = sharpen(probs, power)
    top, hit = probs.max(1), probs.argmax(1) == labels
    missed = used = 0
    for seed in range(200):
        _, p, y = draw(seed, 600)
        found = SelectiveThreshold.fit(sharpen(p, power), y, accuracy=0.85, error=0.1)
        if found.threshold is not None:
            used += 1
            missed += hit[top >= found.threshold].mean() < 0.85
    assert used > 100
    assert missed <= 0.1 * 200


def test_a_model_with_no_better_than_chance_confidence_is_seldom_trusted():
    missed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        probs, labels = rng.dirichlet([0.2, 0.2], 500), rng.integers(0, 2, 500)
        missed += SelectiveThreshold.fit(probs, labels, accuracy=0.55, error=0.1).threshold is not None
    assert missed <= 0.1 * 200


def test_more_data_buys_coverage_and_a_higher_promise_costs_it(draw):
    _, probs, labels = draw(0, 20_000)
    few = SelectiveThreshold.fit(probs[:500], labels[:500], accuracy=0.85)
    many = SelectiveThreshold.fit(probs, labels, accuracy=0.85)
    strict = SelectiveThreshold.fit(probs, labels, accuracy=0.95)
    assert few.coverage < many.coverage
    assert strict.coverage < many.coverage
    assert strict.threshold > many.threshold


@pytest.mark.parametrize("accuracy", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_so_many_rows_are_needed_all_right_and_fewer_never_suffice(accuracy):
    needed = rows_needed(accuracy)
    for rows, enough in ((needed, True), (needed - 1, False)):
        sure = np.tile([0.9999, 0.0001], (rows, 1))
        found = SelectiveThreshold.fit(sure, np.zeros(rows, dtype=int), accuracy=accuracy)
        assert (found.threshold is not None) == enough


@pytest.mark.parametrize(("rows", "reach"), [(0, 0.0), (1, 0.0), (76, 0.93), (103, 0.94), (104, 0.95), (528, 0.99)])
def test_what_so_many_rows_could_promise_at_best(rows, reach):
    assert best_within_reach(rows) == reach
    assert reach == 0 or rows_needed(reach) <= rows


def test_the_highest_level_that_can_be_promised_is_found(draw):
    _, probs, labels = draw(0, 2000)
    found = highest_promise(probs, labels, [0.5, 0.7, 0.8, 0.999])
    assert (found.accuracy, found.error) == (0.8, 0.05)
    alone = SelectiveThreshold.fit(probs, labels, accuracy=0.8, error=0.05 / 4)
    assert (found.threshold, found.coverage) == (alone.threshold, alone.coverage)
    assert highest_promise(probs, labels, [0.999]) is None


def test_choosing_among_levels_costs_no_certainty(draw):
    _, probs, labels = draw(999, 400_000)
    top, hit = probs.max(1), probs.argmax(1) == labels
    missed = used = 0
    for seed in range(200):
        _, p, y = draw(seed, 600)
        found = highest_promise(p, y, np.arange(0.70, 0.99, 0.01).tolist(), error=0.1)
        if found is not None:
            used += 1
            missed += hit[top >= found.threshold].mean() < found.accuracy
    assert used > 100
    assert missed <= 0.1 * 200


def test_it_accepts_the_rows_it_was_certified_for(draw):
    _, probs, labels = draw(1, 2000)
    found = SelectiveThreshold.fit(probs, labels, accuracy=0.8)
    accepted = found(probs)
    assert accepted.mean() == pytest.approx(found.coverage)
    assert (probs.argmax(1) == labels)[accepted].mean() > 0.8
    assert torch.equal(found(torch.tensor(probs)), torch.tensor(accepted))


def test_when_nothing_can_be_promised_nothing_is_accepted(draw):
    _, probs, labels = draw(2, 20)
    found = SelectiveThreshold.fit(probs, labels, accuracy=0.999)
    assert found.threshold is None
    assert found.coverage == 0
    assert not found(probs).any()


def test_it_survives_json_and_refuses_nonsense(draw):
    _, probs, labels = draw(3, 1000)
    for accuracy in (0.8, 0.9999):
        found = SelectiveThreshold.fit(probs, labels, accuracy=accuracy)
        assert SelectiveThreshold.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(InputError, match="accuracy is 95"):
        SelectiveThreshold.fit(probs, labels, accuracy=95)


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_what_are_no_probabilities_is_refused_whatever_the_threshold(threshold):
    found = SelectiveThreshold(threshold, accuracy=0.9, error=0.05, coverage=0.0)
    for bad, says in (([[np.nan, 1.0]], "NaN"), ([[3.0, -1.0]], "negative"), ([0.5, 0.5], "shape"), (None, "None")):
        with pytest.raises(InputError, match=rf"^probs.*{says}"):
            found(None if bad is None else np.array(bad))


@pytest.mark.parametrize("threshold", [np.nan, -0.1, 90.0])
def test_a_threshold_that_is_no_probability_is_refused(threshold):
    with pytest.raises(InputError, match=r"^threshold is .*; it must lie in 0 … 1, or be None to accept nothing$"):
        SelectiveThreshold(threshold, accuracy=0.9, error=0.05, coverage=0.0)
