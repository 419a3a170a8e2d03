"""Whether a difference stands."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from calmix.calibration import accuracy, brier, ece, mcc, nll, oe, paired_bootstrap
from calmix.study.collecting import Predictions
from calmix.study.comparing import COMPARED, Difference, Resamples, difference, resampled

METRICS: dict[str, Any] = {
    "accuracy": accuracy,
    "mcc": mcc,
    "ece": partial(ece, bins=10),
    "oe": partial(oe, bins=10),
    "nll": nll,
    "brier": brier,
}


def _said(seed: int, *, sharp: float = 1.0, skill: float = 1.0, rows: int = 400) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = np.random.default_rng(99).integers(0, 3, rows)
    logits = rng.normal(size=(rows, 3))
    logits[np.arange(rows), labels] += skill
    return Predictions(sharp * logits, labels, 1.5)


@pytest.mark.parametrize("figure", COMPARED)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_figure_itself_and_every_resample_are_what_the_metric_says(figure: str, scaled: bool) -> None:
    said, resamples = _said(0, sharp=3.0), Resamples(400, n=5)
    assert resamples.rows.sum(axis=1).tolist() == [400] * 5
    value, values = resampled(said, COMPARED, resamples, scaled=scaled, bins=10)[figure]
    probs = said.probs(scaled=scaled)
    assert value == pytest.approx(METRICS[figure](probs, said.labels), abs=1e-6)
    for counts, one in zip(resamples.rows, values, strict=True):
        rows = np.repeat(np.arange(400), counts.astype(int))
        assert one == pytest.approx(METRICS[figure](probs[rows], said.labels[rows]), abs=1e-5)


def test_with_one_seed_the_interval_is_that_of_the_paired_bootstrap() -> None:
    mine, base, resamples = _said(0), _said(1, sharp=3.0), Resamples(400, n=1000)
    ours = difference(
        *([resampled(p, ["ece"], resamples, scaled=False, bins=10)["ece"]] for p in (mine, base)), resamples
    )
    theirs = paired_bootstrap(
        METRICS["ece"], mine.probs(scaled=False), base.probs(scaled=False), mine.labels, n=1000, generator=3
    )
    assert ours.estimate == pytest.approx(theirs.estimate, abs=1e-6)
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def test_a_real_difference_stands_and_none_does_not() -> None:
    resamples = Resamples(400)

    def of(**kind: float) -> list[Any]:
        return [
            resampled(_said(seed, **kind), ["accuracy"], resamples, scaled=False, bins=10)["accuracy"]
            for seed in range(5)
        ]

    better = difference(of(skill=3.0), of(), resamples)
    assert better.stands
    assert better.estimate > 0
    same = difference(of(), of(), resamples)
    assert (same.estimate, same.stands) == (0.0, False)


def test_seeds_that_disagree_make_a_difference_doubtful() -> None:
    resamples = Resamples(400)

    def of(*skills: float) -> list[Any]:
        made = (_said(seed, skill=skill) for seed, skill in enumerate(skills))
        return [resampled(said, ["accuracy"], resamples, scaled=False, bins=10)["accuracy"] for said in made]

    agree = difference(of(1.4, 1.4, 1.4), of(1.0, 1.0, 1.0), resamples)
    disagree = difference(of(3.0, 1.0, 0.3), of(1.0, 1.0, 1.0), resamples)
    assert disagree.high - disagree.low > 2 * (agree.high - agree.low)


def test_a_figure_that_is_infinite_settles_nothing() -> None:
    sure = Predictions(np.array([[0.0, -np.inf], [0.0, -np.inf]]), np.array([0, 1]), 1.0)
    resamples = Resamples(2)
    one = resampled(sure, ["nll"], resamples, scaled=False, bins=10)["nll"]
    fine = resampled(Predictions(np.zeros((2, 2)), sure.labels, 1.0), ["nll"], resamples, scaled=False, bins=10)["nll"]
    assert not difference([one], [fine], resamples).stands


def test_an_interval_that_ends_at_zero_is_not_moved_past_it_by_chance() -> None:
    """Two seeds that differ by a few rows: a tenth of the resamples shows no difference at all."""
    resamples = Resamples(150)
    rng = np.random.default_rng(0)
    values = np.where(rng.random((len(resamples.rows), 2)) < 0.3, 0.0, -0.03)
    mine = [(float(column.mean()) + 1e-4, column) for column in values.T]
    base = [(0.0, np.zeros(len(values)))] * 2
    assert difference(mine, base, resamples).high == 0.0
    assert not difference(mine, base, resamples).stands


@pytest.mark.parametrize(("low", "high", "stands"), [(2e-17, 0.02, False), (-0.02, -2e-17, False), (1e-4, 0.02, True)])
def test_what_adding_up_leaves_of_nothing_is_nothing(low: float, high: float, stands: bool) -> None:
    assert Difference((low + high) / 2, low, high).stands == stands
