"""Random draws for a step, from the generator that is passed in, without a value ever reaching the host."""

import torch
from torch import Tensor

__all__ = ["beta", "permutation"]


def beta(alpha: float, size: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return `size` draws λ ~ Beta(α, α) in [0, 1]; α = 0 means no mixing, λ = 1.

    λ = G/(G + G′) for two draws from Gamma(α), which for a small α are too small for any floating-point number:
    G is drawn as Gamma(α + 1)·U^(1/α), whose logarithm never underflows.
    """
    if alpha == 0:
        return torch.ones(size, device=device)
    concentration = torch.full((size, 2), alpha + 1, dtype=torch.float64, device=generator.device)
    gamma = torch._standard_gamma(concentration, generator=generator)
    # 1 − U, because a draw may be 0 but never 1.
    uniform = 1 - torch.rand((size, 2), dtype=torch.float64, generator=generator, device=generator.device)
    logarithm = gamma.log() + uniform.log() / alpha
    return torch.sigmoid(logarithm[:, 0] - logarithm[:, 1]).float().to(device)


def permutation(runs: int, size: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return a uniformly drawn permutation of 0 … size−1 for each of some runs: [runs, size]."""
    keys = torch.rand((runs, size), dtype=torch.float64, generator=generator, device=generator.device)
    return keys.argsort(1).to(device)
