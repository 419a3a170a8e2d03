import numpy as np
import pytest

from calmix.metrics import ece, smooth_ece


def brute(probs, labels, sigma, points=40_000, above=0.0):
    """∫ |mean gap × reflected Gaussian| from `above` to 1, kernel by kernel, images and all."""
    top, hit = probs.max(1), probs.argmax(1) == labels
    t = above + (1 - above) * (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    distinct, of = np.unique(top, return_inverse=True)
    for at, gap in zip(distinct, np.bincount(of, weights=top - hit), strict=True):
        for image in (sign * at + 2 * turn for sign in (1, -1) for turn in (-2, -1, 0, 1, 2)):
            total += gap * np.exp(-((t - image) ** 2) / (2 * sigma**2))
    return (1 - above) * np.abs(total / (len(top) * sigma * np.sqrt(2 * np.pi))).mean()


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_it_is_the_width_at_which_the_smoothed_gap_equals_the_width(draw, sharpen, power):
    _, probs, labels = draw(0, 150)
    probs = sharpen(probs, power)
    found = smooth_ece(probs, labels)
    assert brute(probs, labels, found) == pytest.approx(found, abs=1e-9)


def test_the_ends_of_the_grid_are_reflected():
    probs, labels = np.array([[1.0, 0.0], [1.0, 0.0], [0.999999, 1e-6]]), np.array([0, 1, 1])
    found = smooth_ece(probs, labels)
    assert brute(probs, labels, found) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1e-4, 1e-5, 1e-6, 1e-8])
def test_a_model_that_is_sure_and_right_is_off_by_what_it_lacks(scale):
    top = 1 - np.random.default_rng(0).exponential(scale, 500)
    found = smooth_ece(np.stack([top, 1 - top], 1), np.zeros(500, int))
    assert found == pytest.approx(1 - top.mean(), abs=1e-11)


@pytest.mark.parametrize("scale", [1e-3, 1e-4, 1e-5])
def test_small_results_are_as_exact_where_too_sure_and_too_modest_rows_meet(scale):
    rng = np.random.default_rng(0)
    sure, modest = 1 - rng.uniform(0, scale / 4, 30), 1 - rng.uniform(scale / 2, 3 * scale, 30)
    top = np.concatenate([np.repeat(sure, 10_000), np.repeat(modest, 10_000)])
    labels = (np.arange(600_000) < 600_000 * scale).astype(int)
    probs = np.stack([top, 1 - top], 1)
    found = smooth_ece(probs, labels)
    assert found < 2 * scale
    assert brute(probs, labels, found, above=1 - 20 * max(scale, found)) == pytest.approx(found, abs=1e-9)


def test_of_a_positive_class_both_ends_count():
    p = np.array([1e-5, 2e-5, 1 - 3e-5])
    probs, labels = np.stack([1 - p, p], 1), np.array([0, 0, 1])
    assert smooth_ece(probs, labels, positive_class=1) == pytest.approx(2e-5, abs=1e-11)


def test_order_does_not_matter_and_calibrated_is_near_zero(draw):
    _, probs, labels = draw(1, 50_000)
    rows = np.random.default_rng(0).permutation(50_000)
    found = smooth_ece(probs, labels)
    assert smooth_ece(probs[rows], labels[rows]) == pytest.approx(found, abs=1e-10)
    assert found < 0.01


def test_it_moves_little_when_confidences_cross_the_edge_of_a_bin():
    labels = np.array([0, 1] * 50)

    def at(top):
        return np.where(np.arange(100)[:, None] % 2 == 0, [[top, 1 - top]], [[0.7, 0.3]])

    below, above = at(10 / 15 - 1e-9), at(10 / 15 + 1e-9)
    assert abs(ece(below, labels) - ece(above, labels)) > 0.1
    assert abs(smooth_ece(below, labels) - smooth_ece(above, labels)) < 1e-6


def test_a_perfect_and_a_hopeless_model():
    sure = np.tile([1.0, 0.0], (10, 1))
    assert smooth_ece(sure, np.zeros(10, int)) == pytest.approx(0, abs=1e-9)
    assert smooth_ece(sure, np.ones(10, int)) > 0.5
