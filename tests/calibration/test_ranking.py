from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calmix.metrics import accuracy, aurc, risk_coverage


def in_order(hit):
    """The curve of rows already sorted by confidence."""
    return np.cumsum(~np.asarray(hit)) / np.arange(1, len(hit) + 1)


@given(st.data())
def test_the_curve_equals_the_loop_when_nothing_is_tied(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    probs = rng.dirichlet([0.5] * 3, data.draw(st.integers(1, 50)))
    labels = rng.integers(0, 3, len(probs))
    order = np.argsort(-probs.max(1))
    curve = risk_coverage(probs, labels)
    expected = in_order((probs.argmax(1) == labels)[order])
    assert curve.risk == pytest.approx(expected, abs=1e-12)
    assert curve.coverage == pytest.approx(np.arange(1, len(probs) + 1) / len(probs))
    assert np.array_equal(curve.threshold, probs.max(1)[order])
    assert aurc(probs, labels) == pytest.approx(expected.mean(), abs=1e-9)


def test_ties_count_as_the_average_over_all_their_orders():
    top = np.array([0.9, 0.8, 0.8, 0.8, 0.6])
    labels = np.array([0, 1, 0, 0, 1])
    probs = np.stack([top, 1 - top], 1)
    curves = [in_order(labels[[0, *(1 + i for i in middle), 4]] == 0) for middle in permutations(range(3))]
    assert risk_coverage(probs, labels).risk == pytest.approx(np.mean(curves, 0), abs=1e-12)


@given(st.data())
def test_the_last_point_is_the_error_rate_and_order_does_not_matter(awkward, data):
    probs, labels = data.draw(awkward)
    rows = np.random.default_rng(0).permutation(len(probs))
    assert risk_coverage(probs, labels).risk[-1] == pytest.approx(1 - accuracy(probs, labels), abs=1e-12)
    assert aurc(probs[rows], labels[rows]) == pytest.approx(aurc(probs, labels), abs=1e-12)


def test_tensors_in_tensors_out():
    curve = risk_coverage(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    assert torch.is_tensor(curve.risk)
    assert curve.risk.tolist() == [0, 0.5]
