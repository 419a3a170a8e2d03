import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.dynamics import Dynamics, Half, Region, absent_classes, aum_halves, easy_and_ambiguous, regions


def a_map(confidence, variability, *, aum=None, labels=None):
    """Dynamics with these measures, whatever the rest; NaN was never observed."""
    n = len(confidence)
    confidence = np.asarray(confidence, dtype=np.float64)
    some = np.zeros(n, dtype=np.int64)
    return Dynamics(
        ids=tuple(f"s{row}" for row in range(n)),
        labels=some if labels is None else np.asarray(labels),
        aum=confidence if aum is None else np.asarray(aum, dtype=np.float64),
        confidence=confidence,
        variability=np.asarray(variability, dtype=np.float64),
        correctness=confidence,
        forgetting=some,
        learnt=some > 0,
        observations=np.where(np.isnan(confidence), 0, 3),
        loss=confidence,
        last_loss=confidence,
        last_prediction=some,
        rival=some + 1,
        rival_confidence=1 - confidence,
    )


# Few different values, so that ties are common.
measure = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0, float("nan")])
maps = st.lists(st.tuples(measure, measure), min_size=1, max_size=40).map(
    lambda rows: a_map(
        [np.nan if np.isnan(c + v) else c for c, v in rows], [np.nan if np.isnan(c + v) else v for c, v in rows]
    )
)


def test_halves_are_cut_at_the_median_and_the_median_goes_high():
    halves = aum_halves(a_map([0.5] * 5, [0.1] * 5, aum=[3.0, -1.0, 2.0, 2.0, 7.0]))
    assert halves.tolist() == [Half.HIGH, Half.LOW, Half.HIGH, Half.HIGH, Half.HIGH]


def test_halves_of_an_even_number_without_ties_are_equal():
    halves = aum_halves(a_map([0.5] * 4, [0.1] * 4, aum=[4.0, 1.0, 3.0, 2.0]))
    assert halves.tolist() == [Half.HIGH, Half.LOW, Half.HIGH, Half.LOW]


def test_samples_without_an_aum_are_in_neither_half_and_do_not_move_the_median():
    halves = aum_halves(a_map([0.5] * 4, [0.1] * 4, aum=[np.nan, 1.0, 2.0, np.nan]))
    assert halves.tolist() == [Half.NONE, Half.LOW, Half.HIGH, Half.NONE]
    assert aum_halves(a_map([np.nan], [np.nan])).tolist() == [Half.NONE]


def test_regions_by_hand():
    #           easy  easy  ambiguous (however confident)  hard  hard
    codes = regions(a_map([0.9, 0.8, 0.95, 0.5, 0.1, 0.2], [0.0, 0.1, 0.40, 0.3, 0.0, 0.1]))
    assert codes.tolist() == [Region.EASY, Region.EASY, Region.AMBIGUOUS, Region.AMBIGUOUS, Region.HARD, Region.HARD]


@given(maps, st.sampled_from([0.5, 1 / 3, 0.25]))
def test_every_recorded_sample_is_in_exactly_one_region_of_the_size_asked_for(dynamics, fraction):
    codes = regions(dynamics, fraction=fraction)
    known = ~np.isnan(dynamics.confidence)
    assert ((codes == Region.NONE) == ~known).all()
    size = int(known.sum() * fraction + 0.5)
    assert (codes == Region.AMBIGUOUS).sum() == size
    assert (codes == Region.EASY).sum() == min(size, known.sum() - size)


@given(maps, st.sampled_from([0.5, 1 / 3, 0.25]))
def test_no_sample_outside_a_region_deserves_it_more(dynamics, fraction):
    codes = regions(dynamics, fraction=fraction)
    inside, rest = dynamics.variability[codes == Region.AMBIGUOUS], dynamics.variability[codes != Region.AMBIGUOUS]
    assert inside.min(initial=np.inf) >= np.nanmax(rest, initial=-np.inf)
    easy, hard = dynamics.confidence[codes == Region.EASY], dynamics.confidence[codes == Region.HARD]
    assert easy.min(initial=np.inf) >= hard.max(initial=-np.inf)


def test_thirds_are_thirds_and_quarters_leave_half_to_the_hard():
    rng = np.random.default_rng(0)
    dynamics = a_map(rng.random(300), rng.random(300))
    assert np.bincount(regions(dynamics)).tolist() == [100, 100, 100]
    assert np.bincount(regions(dynamics, fraction=0.25)).tolist() == [75, 75, 150]
    assert np.bincount(regions(dynamics, fraction=0.5)).tolist() == [150, 150]


def test_ties_are_broken_by_the_other_measure_and_then_by_the_row():
    easy, ambiguous = easy_and_ambiguous(a_map([0.5] * 6, [0.2] * 6))
    assert (easy.tolist(), ambiguous.tolist()) == ([2, 3], [0, 1])
    easy, ambiguous = easy_and_ambiguous(a_map([0.9, 0.9, 0.9], [0.1, 0.0, 0.1]))
    assert (easy.tolist(), ambiguous.tolist()) == ([1], [0])


def test_a_sample_that_is_easy_and_ambiguous_counts_as_ambiguous_and_the_next_takes_its_place():
    dynamics = a_map([0.9, 0.8, 0.7, 0.2, 0.1, 0.3], [0.3, 0.1, 0.0, 0.4, 0.0, 0.1])
    easy, ambiguous = easy_and_ambiguous(dynamics)
    assert ambiguous.tolist() == [0, 3]
    assert easy.tolist() == [1, 2]


def test_read_literally_the_two_may_share_samples():
    dynamics = a_map([0.9, 0.8, 0.7, 0.2, 0.1, 0.3], [0.3, 0.1, 0.0, 0.4, 0.0, 0.1])
    easy, ambiguous = easy_and_ambiguous(dynamics, overlap="both")
    assert (easy.tolist(), ambiguous.tolist()) == ([0, 1], [0, 3])


def test_a_region_of_next_to_nothing_may_be_empty():
    assert regions(a_map([0.4], [0.0])).tolist() == [Region.HARD]
    assert regions(a_map([np.nan], [np.nan])).tolist() == [Region.NONE]


@pytest.mark.parametrize("fraction", [0, -0.1, 0.6, 33])
def test_fractions_that_cannot_be_are_refused(fraction):
    with pytest.raises(ValueError, match="fraction"):
        regions(a_map([0.4], [0.0]), fraction=fraction)


def test_an_unknown_overlap_rule_is_refused():
    with pytest.raises(ValueError, match="overlap"):
        easy_and_ambiguous(a_map([0.4], [0.0]), overlap="drop")


def test_classes_that_a_region_lacks_are_named():
    dynamics = a_map([0.9, 0.8, 0.1, 0.2], [0.0, 0.0, 0.0, 0.0], labels=[0, 0, 2, -1])
    assert absent_classes(dynamics, np.array([0, 3])) == (2,)
    assert absent_classes(dynamics, np.array([], dtype=np.int64)) == (0, 2)
    assert absent_classes(dynamics, np.arange(4)) == ()
