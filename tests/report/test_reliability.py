"""The reliability diagram."""

import warnings

import numpy as np
import pytest
from scipy.stats import binomtest

from calmix.metrics import ece
from calmix.report import draw_reliability, prepare_reliability


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.5, 1, n)
    return np.stack([p, 1 - p], 1), (rng.random(n) > p).astype(np.int64)


def test_only_bins_that_hold_something_are_there_and_all_rows_are_counted() -> None:
    probs, labels = drawn(200)
    curve = prepare_reliability(probs, labels, bins=10)
    assert curve.rows.sum() == 200
    assert len(curve.rows) == 5
    assert curve.ece == ece(probs, labels, bins=10)


def test_intervals_are_wilsons() -> None:
    probs, labels = drawn(300)
    curve = prepare_reliability(probs, labels, bins=10)
    for right, rows, low, high in zip(curve.accuracy, curve.rows, curve.low, curve.high, strict=True):
        expected = binomtest(round(right * rows), int(rows)).proportion_ci(method="wilson")
        assert low == pytest.approx(expected.low, abs=1e-4)
        assert high == pytest.approx(expected.high, abs=1e-4)


def test_the_figure_has_a_panel_for_each_data_set_and_says_each_curves_ece() -> None:
    curve = prepare_reliability(*drawn(100))
    figure = draw_reliability({"in": {"plain": curve, "mixup": curve}, "out": {"plain": curve}})
    first, second = figure.axes
    shown = [text.get_text() for text in first.get_legend().get_texts()]
    assert shown == ["perfect calibration", *(f"{name} (ECE {curve.ece:.1%})" for name in ("plain", "mixup"))]
    assert second.get_title(loc="left") == "out"


def test_bins_of_a_handful_of_rows_are_drawn_apart() -> None:
    curve = prepare_reliability(*drawn(100))
    few = int((curve.rows < 10).sum())
    assert 0 < few < len(curve.rows)
    _, line, apart = draw_reliability({"in": {"plain": curve}}).axes[0].get_lines()
    assert len(np.asarray(line.get_xdata())) == len(curve.rows) - few
    assert len(np.asarray(apart.get_xdata())) == few


def test_the_legend_covers_no_curve_and_points_on_the_frame_are_whole() -> None:
    probs = np.repeat([[0.05, 0.95], [0.45, 0.55]], 20, axis=0)
    modest, sure = (prepare_reliability(p, np.ones(40, dtype=np.int64)) for p in (probs, probs[20:].repeat(2, axis=0)))
    figure = draw_reliability({"in": {"plain": modest, "other": sure}, "out": {"plain": sure}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a layout that has no room
        figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
        assert figure.bbox.containsy(axes.get_legend().get_window_extent().y0)
        assert not any(line.get_clip_on() for line in axes.get_lines()[1:])
