"""The figures an epoch is chosen by."""

import numpy as np
import pytest

from calmix.calibration import Temperature, nll
from calmix.training.selecting import dev_figures, joint, score

RNG = np.random.default_rng(0)
LOGITS = (5 * RNG.normal(size=(50, 3))).astype(np.float32)
LABELS = np.array([RNG.choice(3, p=p) for p in Temperature(3.0)(LOGITS)])


def test_the_default_is_nll_after_the_temperature_that_fits() -> None:
    found = dev_figures(LOGITS, LABELS)
    fitted = Temperature.fit(LOGITS, LABELS)
    assert found["temperature"] == fitted.temperature
    assert found["nll-ts"] == nll(fitted(LOGITS), LABELS) < found["nll"]


def test_it_does_not_see_overall_sharpness_where_plain_nll_does() -> None:
    one, sharper = dev_figures(LOGITS, LABELS), dev_figures(3 * LOGITS, LABELS)
    assert score(one, "nll-ts") == pytest.approx(score(sharper, "nll-ts"))
    assert score(one, "nll") > score(sharper, "nll")
    assert score(one, "accuracy") == score(sharper, "accuracy")


def test_higher_is_better_and_none_sees_no_difference() -> None:
    good, bad = {"accuracy": 0.9, "mcc": 0.8, "nll": 0.1}, {"accuracy": 0.5, "mcc": 0.1, "nll": 0.9}
    assert all(score(good, name) > score(bad, name) for name in ("accuracy", "mcc", "nll"))  # type: ignore[arg-type]
    assert score(good, "none") == score(bad, "none")


def test_confidence_and_accuracy_by_batch_average_to_those_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(400, 3)).astype(np.float32), rng.integers(0, 3, 400)
    found = np.array(joint(logits, labels))
    assert found.shape == (20, 2)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found.mean(0) == pytest.approx([probs.max(1).mean(), (probs.argmax(1) == labels).mean()], abs=1e-3)
    assert joint(logits, labels) == joint(logits, labels)
    assert len(joint(logits[:7], labels[:7])) == 1
    assert len(joint(np.tile(logits, (20, 1)), np.tile(labels, 20))) == 100
