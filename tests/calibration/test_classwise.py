import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.errors import InputError
from calmix.metrics import brier, brier_decomposition, classwise_ece, ece


@given(st.data(), st.sampled_from([1, 7, 15]))
def test_classwise_ece_is_the_mean_of_each_class_against_the_rest(awkward, data, bins):
    probs, labels = data.draw(awkward)
    each = [ece(probs, labels, bins=bins, positive_class=k) for k in range(probs.shape[1])]
    assert classwise_ece(probs, labels, bins=bins) == pytest.approx(np.mean(each), abs=1e-9)


@given(st.data(), st.sampled_from([1, 7, 15]))
def test_the_parts_add_up_to_the_brier_score(awkward, data, bins):
    probs, labels = data.draw(awkward)
    parts = brier_decomposition(probs, labels, bins=bins)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.residual
    assert total == pytest.approx(brier(probs, labels), abs=1e-9)
    assert parts.brier == pytest.approx(brier(probs, labels), abs=1e-9)
    alone = brier_decomposition(probs, labels, bins=bins, positive_class=1)
    assert alone.brier == pytest.approx(brier(probs, labels, positive_class=1), abs=1e-9)


def test_nothing_is_left_over_when_each_bin_holds_one_probability():
    rng = np.random.default_rng(0)
    p = rng.choice([0.05, 0.35, 0.65, 0.95], 2000)
    labels = (rng.random(2000) < p**1.5).astype(int)
    parts = brier_decomposition(np.stack([1 - p, p], 1), labels, bins=10, positive_class=1)
    assert parts.residual == pytest.approx(0, abs=1e-12)
    expected = sum((p == v).mean() * (v - labels[p == v].mean()) ** 2 for v in np.unique(p))
    assert parts.reliability == pytest.approx(expected, abs=1e-12)
    spread = sum((p == v).mean() * (labels.mean() - labels[p == v].mean()) ** 2 for v in np.unique(p))
    assert parts.resolution == pytest.approx(spread, abs=1e-12)
    assert parts.uncertainty == pytest.approx(labels.mean() * (1 - labels.mean()), abs=1e-12)


def test_the_residual_shrinks_with_more_bins(draw):
    _, probs, labels = draw(0, 20_000)
    assert abs(brier_decomposition(probs, labels, bins=100).residual) < 0.01 * abs(
        brier_decomposition(probs, labels, bins=3).residual
    )


def test_a_class_that_does_not_exist_is_an_error(draw):
    _, probs, labels = draw(0, 10)
    with pytest.raises(InputError, match="positive_class is 3"):
        brier_decomposition(probs, labels, positive_class=3)
