import math
from functools import partial

import numpy as np
import pytest
import torch

from calmix.errors import InputError
from calmix.metrics import accuracy, bootstrap, brier, debiased_ece, ece, nll, paired_bootstrap


@pytest.mark.parametrize("metric", [accuracy, brier, nll, debiased_ece])
def test_intervals_cover_the_truth_at_about_the_stated_rate(metric, draw, sharpen):
    _, probs, labels = draw(99, 1_000_000)
    truth = metric(sharpen(probs, 1.5), labels)
    covered = 0
    for seed in range(100):
        _, probs, labels = draw(seed, 800)
        found = bootstrap(metric, sharpen(probs, 1.5), labels, n=100, level=0.9, generator=seed)
        covered += found.low <= truth <= found.high
    assert 80 <= covered <= 98  # 90, three standard errors either way


def test_an_interval_holds_its_estimate_and_repeats_with_its_seed(draw):
    _, probs, labels = draw(0, 300)
    first = bootstrap(brier, probs, labels, n=200, generator=7)
    assert first == bootstrap(brier, probs, labels, n=200, generator=np.random.default_rng(7))
    assert first.low < first.estimate == brier(probs, labels) < first.high
    narrow = bootstrap(brier, probs, labels, n=200, level=0.5, generator=7)
    assert first.low < narrow.low < narrow.high < first.high


def test_numpy_and_torch_resample_alike(draw):
    _, probs, labels = draw(0, 100)
    tensors = torch.tensor(probs), torch.tensor(labels)
    assert bootstrap(nll, *tensors, n=20, generator=1) == bootstrap(nll, probs, labels, n=20, generator=1)


def test_a_pair_is_told_apart_where_two_intervals_overlap(draw, sharpen):
    _, probs, labels = draw(0, 400)
    other = sharpen(probs, 1.4)
    alone = [bootstrap(nll, p, labels, n=200, generator=0) for p in (probs, other)]
    assert alone[0].high > alone[1].low
    difference = paired_bootstrap(nll, probs, other, labels, n=200, generator=0)
    assert difference.high < 0
    assert difference.estimate == pytest.approx(nll(probs, labels) - nll(other, labels))


def test_a_model_does_not_differ_from_itself(draw):
    _, probs, labels = draw(0, 50)
    found = paired_bootstrap(partial(ece, bins=10), probs, probs, labels, n=20, generator=0)
    assert (found.low, found.estimate, found.high) == (0, 0, 0)


@pytest.mark.filterwarnings("error")
def test_a_certain_mistake_has_an_infinite_nll_and_infinite_bounds(draw):
    _, probs, labels = draw(0, 50)
    certain = probs.copy()
    certain[7] = np.eye(3)[(labels[7] + 1) % 3]
    found = bootstrap(nll, certain, labels, n=20, generator=0)
    assert (found.estimate, found.low, found.high) == (math.inf, math.inf, math.inf)
    worse = paired_bootstrap(nll, certain, probs, labels, n=20, generator=0)
    assert (worse.estimate, worse.low, worse.high) == (math.inf, math.inf, math.inf)
    better = paired_bootstrap(nll, probs, certain, labels, n=20, generator=0)
    assert (better.estimate, better.low, better.high) == (-math.inf, -math.inf, -math.inf)
    with pytest.raises(InputError, match=r"infinite for both models\); take one that is finite, as brier$"):
        paired_bootstrap(nll, certain, certain, labels, n=20, generator=0)


def test_nonsense_is_an_error(draw):
    _, probs, labels = draw(0, 50)
    with pytest.raises(InputError, match="level"):
        bootstrap(nll, probs, labels, level=95, generator=0)
    with pytest.raises(InputError, match="other has 49 rows"):
        paired_bootstrap(nll, probs, probs[1:], labels, generator=0)


@pytest.mark.parametrize(
    ("generator", "given"), [(torch.Generator(), r"a torch._C.Generator"), ("7", "a builtins.str"), (-1, "-1")]
)
def test_a_generator_of_another_library_is_refused_with_what_is_taken(draw, generator, given):
    _, probs, labels = draw(0, 50)
    says = rf"^generator is {given}; it must be a seed, 0 or above, or a numpy.random.Generator$"
    with pytest.raises(InputError, match=says):
        bootstrap(nll, probs, labels, generator=generator)


def test_the_number_of_resamples_is_whole(draw):
    _, probs, labels = draw(0, 50)
    assert bootstrap(nll, probs, labels, n=20.0, generator=0) == bootstrap(nll, probs, labels, n=20, generator=0)
    with pytest.raises(InputError, match=r"^n is 2.5; it must be a whole number$"):
        bootstrap(nll, probs, labels, n=2.5, generator=0)
