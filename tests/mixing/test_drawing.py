"""Mixing weights and permutations, from the generator that is passed in."""

import pytest
import torch
from scipy import stats

from calmix.mixing.drawing import beta, permutation

CPU = torch.device("cpu")


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 5.0])
def test_draws_are_beta_distributed(alpha: float) -> None:
    draws = beta(alpha, 20_000, generator=_generator(), device=CPU)
    assert draws.dtype == torch.float32
    assert abs(float(draws.mean()) - 0.5) < 0.01
    assert abs(float(draws.var()) - 1 / (4 * (2 * alpha + 1))) < 0.005
    # Below a half: near 1, float32 has too few numbers left for a small α.
    lower = draws[draws < 0.5].double().numpy()
    assert stats.kstest(lower, lambda x: 2 * stats.beta(alpha, alpha).cdf(x)).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-6, 1e-12])
def test_a_tiny_alpha_gives_zeros_and_ones_and_never_nan(alpha: float) -> None:
    draws = beta(alpha, 50_000, generator=_generator(), device=CPU)
    assert not draws.isnan().any()
    assert ((draws >= 0) & (draws <= 1)).all()
    assert abs(float(draws.mean()) - 0.5) < 0.01
    between = ((draws > 0.01) & (draws < 0.99)).float().mean()
    assert abs(float(between) - (stats.beta(alpha, alpha).cdf(0.99) - stats.beta(alpha, alpha).cdf(0.01))) < 0.005


def test_a_large_alpha_gives_halves() -> None:
    draws = beta(1e6, 100, generator=_generator(), device=CPU)
    torch.testing.assert_close(draws, torch.full((100,), 0.5), atol=0.01, rtol=0)


def test_alpha_0_means_no_mixing_and_draws_nothing() -> None:
    generator = _generator()
    assert torch.equal(beta(0, 4, generator=generator, device=CPU), torch.ones(4))
    assert torch.equal(generator.get_state(), _generator().get_state())


def test_the_generator_alone_decides() -> None:
    draws = [beta(0.4, 6, generator=_generator(seed), device=CPU) for seed in (1, 1, 2)]
    orders = [permutation(1, 50, generator=_generator(seed), device=CPU)[0] for seed in (1, 1, 2)]
    for one, same, other in (draws, orders):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
    before = torch.random.get_rng_state()
    beta(0.4, 6, generator=_generator(), device=CPU)
    permutation(1, 6, generator=_generator(), device=CPU)[0]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_permutation_has_every_row_once(size: int) -> None:
    drawn = permutation(1, size, generator=_generator(), device=CPU)[0]
    assert drawn.sort().values.tolist() == list(range(size))


def test_all_permutations_are_equally_likely() -> None:
    generator = _generator()
    drawn = [tuple(permutation(1, 4, generator=generator, device=CPU)[0].tolist()) for _ in range(4800)]
    counts = [drawn.count(each) for each in set(drawn)]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
