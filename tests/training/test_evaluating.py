"""Figures of predictions, and that JSON can hold them."""

import json
from functools import partial

import numpy as np
import pytest

from calmix import metrics
from calmix.training import differences, intervals, json_safe, measure, measure_groups

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet(np.ones(3), 80)
LABELS = RNG.integers(0, 3, 80)


def test_every_figure_is_the_metric_of_its_name() -> None:
    found = measure(PROBS, LABELS, bins=7)
    assert found["n"] == 80
    assert found["accuracy"] == metrics.accuracy(PROBS, LABELS)
    assert found["ece"] == metrics.ece(PROBS, LABELS, bins=7)
    assert found["nll"] == metrics.nll(PROBS, LABELS)
    assert found["brier"] == metrics.brier(PROBS, LABELS)


def test_intervals_hold_the_figures_and_repeat_themselves() -> None:
    found, figures = intervals(PROBS, LABELS, n=100), measure(PROBS, LABELS)
    assert found == intervals(PROBS, LABELS, n=100)
    for name in ("accuracy", "nll", "brier"):
        assert found[name][0] < figures[name] < found[name][1]
    assert all(low >= 0 for low, _ in found.values())


@pytest.mark.parametrize("rows", [1, 2, 80])
def test_intervals_are_those_of_the_bootstrap(rows: int) -> None:
    probs, labels = np.round(PROBS, 1)[:rows] + 1e-3, LABELS[:rows]  # confidences that tie, and lie on edges
    probs /= probs.sum(axis=1, keepdims=True)
    found = intervals(probs, labels, bins=7, n=50, seed=3)
    named = {"accuracy": metrics.accuracy, "nll": metrics.nll, "brier": metrics.brier}
    named |= {name: partial(getattr(metrics, name), bins=7) for name in ("ece", "oe")}
    for name, metric in named.items():
        expected = metrics.bootstrap(metric, probs, labels, n=50, generator=3)
        most = {"nll": np.inf, "brier": 2.0}.get(name, 1.0)
        assert found[name] == pytest.approx([max(0, expected.low), min(expected.high, most)], abs=1e-12), name


def test_no_interval_leaves_what_its_figure_can_be() -> None:
    probs = np.array([[0.96, 0.04]] * 40)
    nearly_all = intervals(probs, np.array([0] * 39 + [1]))
    assert nearly_all["accuracy"][1] == 1
    assert nearly_all["accuracy"][0] < 0.975


def test_differences_are_those_of_the_paired_bootstrap() -> None:
    other = RNG.dirichlet(np.ones(3), 80)
    found = differences(PROBS, other, LABELS, bins=7, n=50, seed=3)
    for name in ("accuracy", "nll", "brier", "ece", "oe"):
        metric = getattr(metrics, name)
        metric = partial(metric, bins=7) if name in ("ece", "oe") else metric
        expected = metrics.paired_bootstrap(metric, PROBS, other, LABELS, n=50, generator=3)
        assert found[name] == pytest.approx([expected.low, expected.high], abs=1e-12), name
    assert differences(PROBS, PROBS, LABELS, n=20)["ece"] == [0, 0]


def test_groups_are_measured_on_their_own_largest_first() -> None:
    groups = ["b"] * 50 + [None] * 10 + ["a"] * 20
    found = measure_groups(PROBS, LABELS, groups)
    assert [(name, f["n"]) for name, f in found.items()] == [("b", 50), ("a", 20), ("None", 10)]
    assert found["b"] == measure(PROBS[:50], LABELS[:50])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float64("-inf"), np.float32("nan")])
def test_what_is_not_finite_becomes_null(bad: float) -> None:
    value = {"a": bad, "b": [1, (bad, 2.5)], "c": np.array([1.0, bad]), "d": {"e": bad}, 3: True, "f": np.int64(4)}
    assert json.dumps(json_safe(value), allow_nan=False) == (
        '{"a": null, "b": [1, [null, 2.5]], "c": [1.0, null], "d": {"e": null}, "3": true, "f": 4}'
    )


@pytest.mark.filterwarnings("error")
def test_a_certain_mistake_has_no_interval() -> None:
    probs = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    found = intervals(probs, np.array([1, 1, 0]), n=20)
    assert np.isnan(found["nll"]).all()
    assert np.isfinite(found["brier"]).all()
