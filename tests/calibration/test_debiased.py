import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.metrics import debiased_ece, ece, squared_ece


@given(st.data(), st.sampled_from([1, 7, 15]))
def test_it_is_the_mean_product_of_different_rows_of_a_bin(awkward, data, bins):
    probs, labels = data.draw(awkward)
    top, hit = probs.max(1).astype(np.float64), probs.argmax(1) == labels
    where = [max([0, *(m for m in range(bins) if c > m / bins)]) for c in top]
    total = 0.0
    for m in range(bins):
        gaps = [c - h for c, h, w in zip(top, hit, where, strict=True) if w == m]
        pairs = [a * b for i, a in enumerate(gaps) for j, b in enumerate(gaps) if i != j]
        total += len(gaps) / len(top) * (np.mean(pairs) if pairs else 0)
    assert squared_ece(probs, labels, bins=bins) == pytest.approx(total, abs=1e-9)


def test_it_equals_the_published_estimator_where_a_bin_holds_one_confidence():
    top = np.repeat([0.55, 0.75, 0.95], 40)
    hit = np.random.default_rng(0).random(120) < top - 0.05
    expected = 0.0
    for v in np.unique(top):
        acc = hit[top == v].mean()
        expected += ((v - acc) ** 2 - acc * (1 - acc) / (40 - 1)) / 3  # Kumar et al. 2019, equation 4
    labels = np.where(hit, 0, 1)
    assert squared_ece(np.stack([top, 1 - top], 1), labels, bins=10) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("power", [1.0, 1.5])
def test_it_is_unbiased_where_plain_ece_is_not(draw, sharpen, power):
    def measured(metric, seed, rows):
        _, probs, labels = draw(seed, rows)
        return metric(sharpen(probs, power), labels)

    if power == 1:
        truth, plain = 0.0, 0.0
    else:
        truth, plain = measured(squared_ece, 9, 2_000_000), measured(ece, 9, 2_000_000)
    found = {metric: [measured(metric, s, 300) for s in range(400)] for metric in (squared_ece, debiased_ece, ece)}

    def off(metric, around):
        values = np.array(found[metric])
        return (values.mean() - around) / (values.std() / np.sqrt(len(values)))

    assert abs(off(squared_ece, truth)) < 2.5
    assert off(ece, plain) > 10
    if power == 1:
        assert abs(off(debiased_ece, 0)) < 2.5


def test_the_root_keeps_the_sign(draw):
    squares = [(squared_ece(p, y), debiased_ece(p, y)) for _, p, y in (draw(seed, 200) for seed in range(20))]
    assert {s > 0 for s, _ in squares} == {True, False}
    for square, root in squares:
        assert root * abs(root) == pytest.approx(square, abs=1e-15)
