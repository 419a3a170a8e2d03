from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.errors import InputError
from calmix.metrics import adaptive_ece, ece


def reference(probs, labels, bins):
    """Bins end at the ⌈n·m/M⌉-th smallest confidence; the rows at or below it, and above the one before."""
    confidence = probs.max(1).astype(np.float64)
    hit = probs.argmax(1) == labels
    ranked, rows = sorted(confidence.tolist()), len(confidence)
    ends = [-np.inf] + [ranked[max(-(-rows * m // bins) - 1, 0)] for m in range(1, bins)] + [np.inf]
    total = 0.0
    for low, high in pairwise(ends):
        inside = (confidence > low) & (confidence <= high)
        total += abs(sum(confidence[inside].tolist()) - int(hit[inside].sum()))
    return total / rows


@given(st.data(), st.sampled_from([1, 2, 7, 15]))
def test_it_equals_the_loop(awkward, data, bins):
    probs, labels = data.draw(awkward)
    assert adaptive_ece(probs, labels, bins=bins) == pytest.approx(reference(probs, labels, bins), abs=1e-9)


@given(st.data())
def test_order_of_rows_does_not_matter_even_with_ties(awkward, data):
    probs, labels = data.draw(awkward)
    rows = np.random.default_rng(0).permutation(len(probs))
    assert adaptive_ece(probs[rows], labels[rows]) == pytest.approx(adaptive_ece(probs, labels), abs=1e-12)


def test_one_bin_is_one_bin(draw):
    _, probs, labels = draw(0, 200)
    assert adaptive_ece(probs, labels, bins=1) == pytest.approx(ece(probs, labels, bins=1), abs=1e-12)
    with pytest.raises(InputError):
        adaptive_ece(probs, labels, bins=0)


def test_it_resolves_confidences_that_share_a_fixed_bin(draw):
    # All in one of 15 equal-width bins, where over- and underconfidence cancel.
    top = np.repeat([0.995, 0.945], 100)
    hit = np.r_[np.arange(100) < 95, np.arange(100) < 99]
    probs = np.stack([top, 1 - top], 1)
    labels = np.where(hit, 0, 1)
    assert ece(probs, labels) == pytest.approx(0, abs=1e-12)
    assert adaptive_ece(probs, labels, bins=2) == pytest.approx(0.045)
