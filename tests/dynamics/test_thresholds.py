import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.dynamics import (
    Dynamics,
    aum_filter,
    aum_filter_pair,
    threshold_pair,
    threshold_runs,
    threshold_samples,
)


def rng():
    return np.random.default_rng(0)


def run_with(aum):
    """Dynamics of two classes with these areas under the margin."""
    aum = np.asarray(aum, dtype=np.float64)
    return Dynamics.from_logits(np.stack([aum, np.zeros_like(aum)], 1)[None], np.zeros(len(aum), dtype=int))


regions = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(regions, st.integers(0, 99))
def test_balanced_sets_have_the_size_asked_for_as_evenly_as_the_classes_allow(labels, seed):
    labels = np.array(labels)
    taken = threshold_samples(labels, 4, np.arange(len(labels)), np.random.default_rng(seed))
    sizes, counts = np.bincount(labels, minlength=4), np.bincount(labels[taken.rows], minlength=4)
    assert len(taken) == len(set(taken.rows.tolist())) == min(len(labels) // 5, (sizes // 2).sum())
    assert (counts <= sizes // 2).all()
    with_room = counts < sizes // 2
    if with_room.any():  # no class has more than one above a class that could have given more
        assert counts.max() <= counts[with_room].min() + 1
    assert (taken.labels == 4).all()


def test_only_rows_of_the_region_are_taken():
    region = np.array([3, 5, 7, 9, 11, 13, 15, 17, 19])
    labels = np.arange(20) % 2
    labels[region] = [0, 1, 0, 1, 0, 1, 0, 1, 0]
    taken = threshold_samples(labels, 2, region, rng())
    assert len(taken) == 3
    assert set(taken.rows) <= set(region)


def test_labels_are_replaced_in_a_copy():
    labels = np.array([0, 1, 0, 1, 0, 1])
    taken = threshold_samples(labels, 2, np.arange(6), rng())
    changed = taken.applied(labels)
    assert (changed[taken.rows] == 2).all()
    assert labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert (changed != labels).sum() == len(taken) == 2


def test_as_worded_a_share_of_each_class_gets_any_label_but_its_own():
    labels = np.arange(3000) % 3
    taken = threshold_samples(labels, 3, np.arange(3000), rng(), wording="literal")
    assert np.bincount(labels[taken.rows]).tolist() == [750, 750, 750]
    assert (taken.labels != labels[taken.rows]).all()
    drawn = np.bincount(taken.labels)
    assert len(drawn) == 4
    assert drawn[:3].min() > 400  # each from two of the three classes
    assert 650 < drawn[3] < 850  # the non-existent one from all three


def test_the_draw_comes_from_the_generator():
    labels = np.arange(50) % 2
    one, two = (threshold_samples(labels, 2, np.arange(50), np.random.default_rng(7)).rows for _ in range(2))
    assert one.tolist() == two.tolist()
    assert one.tolist() != threshold_samples(labels, 2, np.arange(50), np.random.default_rng(8)).rows.tolist()


@given(regions, st.integers(0, 99))
def test_two_sets_are_disjoint_and_alike(labels, seed):
    labels = np.array(labels)
    one, two = threshold_pair(labels, 4, np.arange(len(labels)), np.random.default_rng(seed))
    assert not set(one.rows) & set(two.rows)
    assert np.bincount(labels[one.rows], minlength=4).tolist() == np.bincount(labels[two.rows], minlength=4).tolist()


def test_labels_outside_the_classes_and_unknown_wordings_are_refused():
    with pytest.raises(ValueError, match=r"0 … 1"):
        threshold_samples(np.array([0, 2]), 2, np.arange(2), rng())
    with pytest.raises(ValueError, match="wording"):
        threshold_samples(np.array([0, 1]), 2, np.arange(2), rng(), wording="loose")
    with pytest.raises(ValueError, match="wording is 'balanced' or 'literal', not 'loose'"):
        threshold_runs(np.array([0, 1]), 2, np.arange(2), rng(), wording="loose")


def test_samples_below_the_percentile_of_the_threshold_samples_are_dropped():
    #                 threshold samples            real samples
    dynamics = run_with([-4, -3, -2, -1, 0, 1.0, -0.5, -1.0, -1.01, -9])
    kept = aum_filter(dynamics, [0, 1, 2, 3, 4], k=75)  # that percentile is −1
    assert dynamics.aum[kept].tolist() == [1.0, -0.5, -1.0]
    assert aum_filter(dynamics, [0, 1, 2, 3, 4], k=0).tolist() == [5, 6, 7, 8]


def test_threshold_samples_and_samples_outside_the_run_are_not_kept():
    dynamics = run_with([-1, 5, np.nan, 5])
    assert aum_filter(dynamics, [0, 1], k=50).tolist() == [3]


def test_two_runs_judge_every_sample_each_against_its_own_threshold():
    first, second = run_with([-1, -1, 9, 0, 0, -5]), run_with([3, 5, 4, 4, 9, 9])
    # First run: threshold −1, judges 2–5. Second: rows 2 and 3 are at 4, judges 0 and 1.
    assert aum_filter_pair(first, [0, 1], second, [2, 3], k=50).tolist() == [1, 2, 3, 4]


def test_the_pair_of_filters_wants_disjoint_threshold_samples_of_the_same_set():
    run = run_with([1, 2, 3])
    with pytest.raises(ValueError, match="share threshold samples"):
        aum_filter_pair(run, [0], run, [0, 1])
    with pytest.raises(ValueError, match="same samples"):
        aum_filter_pair(run, [0], run_with([1, 2]), [1])


def test_a_run_without_threshold_samples_has_no_threshold():
    with pytest.raises(ValueError, match="no threshold sample"):
        aum_filter(run_with([np.nan, 1.0]), [0])


def test_of_choices_the_fake_one_comes_after_the_last_of_each_sample():
    sizes = np.array([2, 4] * 30)
    labels = np.arange(60) % sizes
    first, second = threshold_pair(labels, sizes, np.arange(60), rng())
    for taken in (first, second, threshold_samples(labels, sizes, np.arange(60), rng())):
        assert (taken.labels == sizes[taken.rows]).all()
        assert np.bincount(sizes[taken.rows]).tolist() == [0, 0, 30 // 3, 0, 30 // 5]
        assert (np.diff(taken.rows) > 0).all()
    assert not set(first.rows) & set(second.rows)
    literal = threshold_samples(labels, sizes, np.arange(60), rng(), wording="literal")
    assert (literal.labels != labels[literal.rows]).all()
    assert (literal.labels <= sizes[literal.rows]).all()


@pytest.mark.parametrize("wording", ["balanced", "literal"])
@given(labels=regions, seed=st.integers(0, 99))
def test_the_runs_of_a_wording_judge_every_sample_once_with_its_own_label(wording, labels, seed):
    region = np.arange(len(labels)) * 2
    known = np.repeat(labels, 2)
    runs = threshold_runs(known, 4, region, np.random.default_rng(seed), wording=wording)
    assert len(runs) == (2 if wording == "balanced" else 5)
    assert sorted(row for run in runs for row in run.judged) == region.tolist()
    for run in runs:
        assert not set(run.judged) & set(run.thresholds.rows)
        assert set(run.thresholds.rows) <= set(region)
        assert (run.thresholds.labels != known[run.thresholds.rows]).all()


def test_as_worded_each_run_relabels_the_same_share_of_every_class():
    labels = np.arange(1200) % 3
    for run in threshold_runs(labels, 3, np.arange(1200), rng(), wording="literal"):
        assert np.bincount(labels[run.thresholds.rows]).tolist() == [300, 300, 300]
        assert np.bincount(labels[run.judged]).tolist() == [100, 100, 100]
        assert set(run.thresholds.labels) == {0, 1, 2, 3}


def test_as_worded_samples_with_fewer_choices_are_judged_in_as_many_runs_as_those_take():
    sizes = np.array([2, 4] * 60)
    labels = np.arange(120) % sizes
    runs = threshold_runs(labels, sizes, np.arange(120), rng(), wording="literal")
    assert [len(run.judged) for run in runs] == [32, 32, 32, 12, 12]
    assert sorted(row for run in runs for row in run.judged) == list(range(120))
    for run in runs:
        assert (run.thresholds.labels <= sizes[run.thresholds.rows]).all()
        assert (run.thresholds.labels != labels[run.thresholds.rows]).all()


def test_samples_that_all_have_as_many_choices_are_as_classes_are():
    labels = np.arange(40) % 3
    one, other = threshold_pair(labels, 3, np.arange(40), rng()), threshold_pair(labels, [3] * 40, np.arange(40), rng())
    for a, b in zip(one, other, strict=True):
        assert a.rows.tolist() == b.rows.tolist()
        assert a.labels.tolist() == b.labels.tolist()


def test_of_nobody_nobody_is_taken():
    assert len(threshold_samples([], [], [], rng())) == 0
