"""Random draws for a step, from the generator that is passed in, without a value ever reaching the host."""

import torch
from torch import Tensor

__all__ = ["beta", "permutation"]


def beta(alpha: float, size: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return `size` draws λ ~ Beta(α, α) in [0, 1]; α = 0 means no mixing, λ = 1.

    Drawn in float64: for a small α, float32 gamma draws underflow to 0/0.
    """
    if alpha == 0:
        return torch.ones(size, device=device)
    concentration = torch.full((size, 2), alpha, dtype=torch.float64, device=generator.device)
    draws = torch._sample_dirichlet(concentration, generator=generator)
    return draws[:, 0].float().to(device)


def permutation(size: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return a uniformly drawn permutation of 0 … size−1."""
    keys = torch.rand(size, dtype=torch.float64, generator=generator, device=generator.device)
    return keys.argsort().to(device)
