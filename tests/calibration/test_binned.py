import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calmix.errors import InputError
from calmix.metrics import BinCounts, accuracy, ece, mce, oe, reliability


def reference(probs, labels, bins, positive_class=None):
    """ECE, MCE and OE as written in the papers, one row at a time."""
    inside = [[] for _ in range(bins)]
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        winner = row.index(max(row)) if positive_class is None else positive_class
        where = next((m for m in range(bins) if m / bins < row[winner] <= (m + 1) / bins), None)
        if where is None:  # 0, or rounded above 1
            where = 0 if row[winner] <= 0 else bins - 1
        inside[where].append((row[winner], float(label == winner)))
    e, m, o = 0.0, 0.0, 0.0
    for rows in filter(None, inside):
        confidence, hit = (sum(values) / len(rows) for values in zip(*rows, strict=True))
        e += len(rows) / len(labels) * abs(confidence - hit)
        m = max(m, abs(confidence - hit))
        o += len(rows) / len(labels) * confidence * max(confidence - hit, 0)
    return e, m, o


@given(st.data(), st.sampled_from([1, 2, 7, 10, 15, 100]), st.sampled_from([None, 0, 1]))
def test_ece_mce_and_oe_equal_the_loop(awkward, data, bins, positive_class):
    probs, labels = data.draw(awkward)
    ours = tuple(f(probs, labels, bins=bins, positive_class=positive_class) for f in (ece, mce, oe))
    assert ours == pytest.approx(reference(probs, labels, bins, positive_class), abs=1e-9)


@pytest.mark.parametrize("bins", [3, 7, 10, 15, 49, 1000])
@pytest.mark.parametrize("nudge", [-1, 0, 1])
def test_edges_belong_to_the_bin_below_to_the_last_bit(bins, nudge):
    tops = np.arange(bins + 1) / bins
    tops = np.clip(tops if nudge == 0 else np.nextafter(tops, nudge), 0, 1)
    found = reliability(np.stack([tops, 1 - tops], 1), np.zeros(bins + 1, int), bins=bins, positive_class=0)
    expected = np.zeros(bins, int)
    for top in tops:
        expected[max(m for m in range(bins) if m == 0 or top > m / bins)] += 1
    assert found.counts.tolist() == expected.tolist()


def test_by_hand():
    probs = np.array([[0.95, 0.05], [0.95, 0.05], [0.65, 0.35], [0.35, 0.65]])
    labels = np.array([0, 1, 0, 1])
    assert ece(probs, labels, bins=10) == pytest.approx(0.5 * 0.45 + 0.5 * 0.35)
    assert mce(probs, labels, bins=10) == pytest.approx(0.45)
    assert oe(probs, labels, bins=10) == pytest.approx(0.5 * 0.95 * 0.45)


@given(st.data())
def test_order_of_rows_and_names_of_classes_do_not_matter(awkward, data):
    probs, labels = data.draw(awkward)
    rng = np.random.default_rng(0)
    rows, classes = rng.permutation(len(probs)), rng.permutation(probs.shape[1])
    shuffled = probs[rows][:, classes], np.argsort(classes)[labels[rows]]
    assert ece(probs[rows], labels[rows]) == pytest.approx(ece(probs, labels), abs=1e-12)
    untied = (probs == probs.max(1, keepdims=True)).sum(1).max() == 1
    if untied:
        assert ece(*shuffled) == pytest.approx(ece(probs, labels), abs=1e-12)


@given(st.data())
def test_counts_of_parts_add_up_to_the_whole(awkward, data):
    probs, labels = data.draw(awkward)
    cut = data.draw(st.integers(1, len(probs)))
    counts = BinCounts.empty(10).update(probs[:cut], labels[:cut])
    if cut < len(probs):
        counts = BinCounts.of(probs[cut:], labels[cut:], bins=10) + counts
    assert counts.ece() == pytest.approx(ece(probs, labels, bins=10), abs=1e-12)
    assert counts.mce() == pytest.approx(mce(probs, labels, bins=10), abs=1e-12)
    assert counts.oe() == pytest.approx(oe(probs, labels, bins=10), abs=1e-12)
    assert counts.accuracy() == accuracy(probs, labels)
    assert BinCounts.from_array(counts.to_array()).ece() == counts.ece()


def test_counts_that_do_not_fit_are_not_merged():
    with pytest.raises(InputError, match="cannot merge"):
        BinCounts.empty(10) + BinCounts.empty(15)
    with pytest.raises(InputError, match="cannot merge"):
        BinCounts.empty() + BinCounts.empty(positive_class=1)
    with pytest.raises(InputError, match="nothing to measure"):
        BinCounts.empty().ece()
    with pytest.raises(InputError, match="at least one"):
        BinCounts.empty(0)


def test_reliability_marks_empty_bins_and_cannot_be_changed():
    found = reliability(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]), bins=2)
    assert found.edges.tolist() == [0, 0.5, 1]
    assert found.counts.tolist() == [0, 2]
    assert np.isnan(found.confidence[0])
    assert found.confidence[1] == pytest.approx(0.85)
    assert found.accuracy[1] == 0.5
    with pytest.raises(AttributeError):
        found.counts = None


def test_sums_are_float64_even_for_float32():
    # A float32 sum stops growing at 2²⁴; this one would be off in the third decimal long before.
    probs = torch.tensor([[0.7, 0.3]]).expand(3_000_000, 2)
    labels = torch.zeros(3_000_000, dtype=torch.int64)
    assert ece(probs, labels) == pytest.approx(1 - float(np.float32(0.7)), abs=1e-12)


def test_numpy_and_torch_agree_exactly(draw):
    _, probs, labels = draw(0, 1000)
    assert ece(torch.tensor(probs), torch.tensor(labels)) == ece(probs, labels)
