import numpy as np
import pytest

from calmix.metrics import ece, smooth_ece


def brute(probs, labels, sigma, points=40_000):
    """∫ |mean gap × reflected Gaussian|, kernel by kernel, images and all."""
    top, hit = probs.max(1), probs.argmax(1) == labels
    t = (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    for at, gap in zip(top, top - hit, strict=True):
        for image in (sign * at + 2 * turn for sign in (1, -1) for turn in (-2, -1, 0, 1, 2)):
            total += gap * np.exp(-((t - image) ** 2) / (2 * sigma**2))
    return np.abs(total / (len(top) * sigma * np.sqrt(2 * np.pi))).mean()


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
