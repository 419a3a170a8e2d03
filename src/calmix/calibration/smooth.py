"""Calibration error without bins: gaps smoothed with a Gaussian."""

import math

import torch
from torch import Tensor

from calmix.calibration.checks import Array
from calmix.calibration.confidence import stream

__all__ = ["smooth_ece"]

_CELLS = 1 << 16  # grid the gaps are spread on: with cubic weights the error is below 1e-9
_POINTS = 1 << 14  # where the smoothed gap is evaluated to integrate it


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
    spectrum = _cosines(grid) / rows
    return _fixed_point(spectrum)


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


def _cosines(padded: Tensor) -> Tensor:
    """Σ_j g_j cos(πkj/cells) for k = 0 … cells, from a grid with one point more at either end."""
    grid = padded[1:-1].clone()
    grid[1] += padded[0]  # reflected at 0 …
    grid[-2] += padded[-1]  # … and at 1
    grid[1:-1] /= 2  # each inner point appears twice in the even extension
    cosines: Tensor = torch.fft.rfft(torch.cat([grid, grid[1:-1].flip(0)])).real
    return cosines


def _at(spectrum: Tensor, sigma: float) -> float:
    """smECE_σ."""
    k = torch.arange(min(_POINTS, len(spectrum)), dtype=torch.float64, device=spectrum.device)
    damped = spectrum[: len(k)] * torch.exp(-((math.pi * sigma * k) ** 2) / 2)
    # ∫ over [0, 1] is the mean over the even, periodic extension, where equal weights are accurate.
    values = torch.fft.irfft(torch.cat([damped, damped.new_zeros(1)]).to(torch.complex128), n=2 * _POINTS)
    return float(values.abs().sum())


def _fixed_point(spectrum: Tensor) -> float:
    """The σ at which smECE_σ = σ: smECE_σ falls as σ grows, so there is one.

    Found by regula falsi, in its Illinois form, in a dozen steps. The difference falls at least as fast as σ
    grows, so that it bounds the distance from the solution.
    """
    (low, above), (high, below) = (0.0, _at(spectrum, 0.0)), (1.0, _at(spectrum, 1.0) - 1.0)
    side = 0
    while above > 1e-12 and high - low > 1e-12:
        sigma = (low * below - high * above) / (below - above)
        left = _at(spectrum, sigma) - sigma
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
