"""Confidence against accuracy as points."""

import numpy as np
import pytest

from calmix.report import draw_scatter, prepare_scatter


def test_points_are_groups_of_like_confidence_that_hold_all_rows() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1, 1], 500)
    labels = rng.integers(0, 3, 500)
    table = prepare_scatter([("run", "test", probs, labels)], points=20)
    assert len(table) == 20
    assert sum(table["rows"].to_pylist()) == 500
    sure = np.asarray(table["confidence"])
    assert (np.diff(sure) > 0).all()
    weights = np.asarray(table["rows"]) / 500
    assert (weights * np.asarray(table["accuracy"])).sum() == pytest.approx((probs.argmax(1) == labels).mean())
    assert (weights * sure).sum() == pytest.approx(probs.max(1).mean())


def test_few_rows_are_few_points_and_each_run_has_a_panel() -> None:
    probs = np.array([[0.9, 0.1]] * 25)
    labels = np.zeros(25, dtype=np.int64)
    table = prepare_scatter([("a", "test", probs, labels), ("b$", "test", probs, labels)])
    assert len(table) == 4
    figure = draw_scatter(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a · test", r"b\$ · test"]
