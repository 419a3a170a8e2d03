"""Calibration error without bins: gaps smoothed with a Gaussian."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import Array
from calmix.calibration.confidence import stream

__all__ = ["smooth_ece"]

_CELLS = 1 << 16  # grid the gaps are spread on: with cubic weights the error is below 1e-9
_POINTS = 1 << 14  # where the smoothed gap is evaluated to integrate it
_FEW = 1 << 10  # enough to know about where the solution is


def smooth_ece(probs: Array, labels: Array, *, positive_class: int | None = None) -> float:
    """The smooth calibration error of Błasiok & Nakkiran (2023): no bins, hence no jumps at their edges.

    smECE_σ = ∫ |mean of (confidence − hit) · k_σ(t, confidence)| dt with a Gaussian kernel reflected at 0
    and 1. Its width is not a choice: σ is where smECE_σ = σ. Within a factor of 2 it measures the distance
    to the nearest calibrated predictor.

    On [0, 1] with reflection, smoothing multiplies the k-th cosine coefficient by exp(−π²k²σ²/2). So the
    gaps are summed once, on a fine grid, and every σ of the search costs one small inverse transform.
    """
    grid: Tensor | None = None
    rows = 0
    for confidence, hit in stream(probs, labels, positive_class):
        if grid is None:
            grid = torch.zeros(_CELLS + 3, dtype=torch.float64, device=hit.device)
        exact = confidence.double().clamp_(max=1)
        grid += _spread(exact, exact - hit.double())
        rows += len(hit)
    assert grid is not None
    # Small from here on, and numpy's transforms are the faster ones on a processor.
    return _fixed_point(_cosines(grid.cpu().numpy()) / rows)


def _spread(at: Tensor, weight: Tensor) -> Tensor:
    """`weight` divided among the four grid points around `at`, as in cubic (Lagrange) interpolation."""
    position = at * _CELLS
    cell = position.floor().clamp_(max=_CELLS - 1)
    t = position - cell
    index = cell.long()
    shares = (
        -t * (t - 1) * (t - 2) / 6,
        (t + 1) * (t - 1) * (t - 2) / 2,
        -(t + 1) * t * (t - 2) / 2,
        (t + 1) * t * (t - 1) / 6,
    )
    total = torch.zeros(_CELLS + 3, dtype=torch.float64, device=at.device)
    for offset, share in enumerate(shares):
        total += torch.bincount(index + offset, weights=share * weight, minlength=_CELLS + 3)
    return total


def _cosines(padded: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_j g_j cos(πkj/cells) for k = 0 … points, from a grid with one point more at either end."""
    grid = padded[1:-1].copy()
    grid[1] += padded[0]  # reflected at 0 …
    grid[-2] += padded[-1]  # … and at 1
    grid[1:-1] /= 2  # each inner point appears twice in the even extension
    return np.fft.rfft(np.concatenate([grid, grid[-2:0:-1]])).real[: _POINTS + 1]


def _at(spectrum: NDArray[np.float64], sigma: float, points: int) -> float:
    """smECE_σ."""
    damped = spectrum[: points + 1] * np.exp(-((math.pi * sigma * np.arange(points + 1)) ** 2) / 2)
    damped[-1] = 0.0
    # ∫ over [0, 1] is the mean over the even, periodic extension, where equal weights are accurate.
    return float(np.abs(np.fft.irfft(damped, n=2 * points)).sum())


def _fixed_point(spectrum: NDArray[np.float64]) -> float:
    """The σ at which smECE_σ = σ: smECE_σ falls as σ grows, so there is one.

    Looked for on a coarse grid, then on the fine one. What smECE_σ exceeds σ by falls at least as fast as σ grows, so
    that it bounds the distance from the solution.
    """
    guess = _between(spectrum, 0.0, 1.0, _FEW)
    excess = _at(spectrum, guess, _POINTS) - guess
    return _between(spectrum, max(0.0, min(guess, guess + excess)), min(1.0, max(guess, guess + excess)), _POINTS)


def _between(spectrum: NDArray[np.float64], low: float, high: float, points: int) -> float:
    """The solution between two bounds, by regula falsi in its Illinois form."""
    above, below = (_at(spectrum, sigma, points) - sigma for sigma in (low, high))
    side = 0
    while above > 1e-12 and high - low > 1e-12:
        sigma = (low * below - high * above) / (below - above)
        left = _at(spectrum, sigma, points) - sigma
        if abs(left) <= 1e-12:
            return sigma
        if left > 0:
            low, above = sigma, left
            below = below / 2 if side == 1 else below
            side = 1
        else:
            high, below = sigma, left
            above = above / 2 if side == -1 else above
            side = -1
    return low
