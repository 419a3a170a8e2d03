import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from calmix.errors import InputError
from calmix.metrics import nll
from calmix.recalibration import Temperature, VectorScaling


def test_it_finds_the_optimum_scipy_finds(draw):
    logits, _, labels = draw(0, 1000)
    twisted = logits * [2.0, 1.0, 0.5] + [1.0, 0.0, -1.0]

    def loss(theta):
        scale, shift = theta.reshape(2, 3)
        return -log_softmax(twisted * scale + shift, 1)[np.arange(1000), labels].mean()

    best = minimize(loss, np.r_[np.ones(3), np.zeros(3)], tol=1e-12).fun
    fitted = VectorScaling.fit(twisted, labels)
    assert nll(fitted(twisted), labels) == pytest.approx(best, abs=1e-5)


def test_it_undoes_a_known_scale_and_shift(draw):
    logits, _, labels = draw(1, 50_000)
    fitted = VectorScaling.fit(logits * [2.0, 1.0, 0.5] + [1.0, 0.0, -1.0], labels)
    assert fitted.scale == pytest.approx([0.5, 1, 2], rel=0.05)
    shift = np.array(fitted.shift) - fitted.shift[1]
    assert shift == pytest.approx([-0.5, 0, 2], abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_it_never_does_worse_on_its_data_than_temperature(draw, seed):
    logits, _, labels = draw(seed, 200)
    vector, scalar = VectorScaling.fit(logits * 3, labels), Temperature.fit(logits * 3, labels)
    assert nll(vector(logits * 3), labels) <= nll(scalar(logits * 3), labels) + 1e-5


def test_perfect_data_and_missing_choices_are_survived(draw):
    logits, _, labels = draw(2, 50)
    perfect = VectorScaling.fit(logits, logits.argmax(1))
    assert np.isfinite(perfect.scale).all()
    padded = np.hstack([logits, np.full((50, 1), -np.inf)])
    assert np.array_equal(VectorScaling.fit(padded, labels)(padded)[:, 3], np.zeros(50))


def test_it_survives_json_and_refuses_other_numbers_of_classes(draw):
    logits, _, labels = draw(3, 50)
    fitted = VectorScaling.fit(logits, labels)
    assert VectorScaling.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    with pytest.raises(InputError, match="fitted for 3"):
        fitted(logits[:, :2])


def test_it_fits_where_gradients_are_switched_off(draw):
    logits, _, labels = draw(4, 200)
    expected = VectorScaling.fit(logits, labels)
    with torch.inference_mode():
        z, y = torch.tensor(logits), torch.tensor(labels)
        assert VectorScaling.fit(z, y) == expected
    with torch.no_grad():
        assert VectorScaling.fit(logits, labels) == expected


def test_soft_targets_with_a_missing_choice_are_fitted(draw):
    logits, probs, _ = draw(5, 100)
    padded = np.hstack([logits * 3, np.full((100, 1), -np.inf)])
    fitted = VectorScaling.fit(padded, np.hstack([probs, np.zeros((100, 1))]))
    assert fitted.scale[:3] == pytest.approx([1 / 3] * 3, rel=1e-3)
