"""Calibration error without bins: gaps smoothed with a Gaussian."""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import Array
from calmix.calibration.confidence import confidences, stream

__all__ = ["smooth_ece"]

Values = TypeVar("Values", Tensor, NDArray[np.float64])

_CELLS = 1 << 16  # grid the gaps are spread on: with cubic weights the error is below 1e-9
_POINTS = 1 << 14  # where the smoothed gap is evaluated to integrate it
_FEW = 1 << 10  # enough to know about where the solution is
# Below this width the points are too few, and a grid is laid only where there are confidences.
_NARROW = 2e-3
_STEPS, _REACH = 32, 8  # steps of that grid to a width; widths after which a Gaussian is 0


def smooth_ece(probs: Array, labels: Array, *, positive_class: int | None = None) -> float:
    """The smooth calibration error of Błasiok & Nakkiran (2023): no bins, hence no jumps at their edges.

    smECE_σ = ∫ |mean of (confidence − hit) · k_σ(t, confidence)| dt with a Gaussian kernel reflected at 0
    and 1. Its width is not a choice: σ is where smECE_σ = σ. Within a factor of 2 it measures the distance
    to the nearest calibrated predictor.

    On [0, 1] with reflection, smoothing multiplies the k-th cosine coefficient by exp(−π²k²σ²/2). So the
    gaps are summed once, on a fine grid, and every σ of the search costs one small inverse transform. The
    small results of a model that is nearly always sure, and right, are found on a grid as fine as they are.
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
    found = _fixed_point(_cosines(grid.cpu().numpy()) / rows)
    if found >= _NARROW:
        return found
    confidence, hit = confidences(probs, labels, positive_class)
    at, of = np.unique(confidence.clamp_(max=1).cpu().numpy(), return_inverse=True)
    gaps = (confidence - hit.double()).cpu().numpy()
    narrow = partial(_at_narrow, at, np.bincount(of, weights=gaps) / rows)
    return _between(narrow, 0.0, 2 * _NARROW)


def _spread(at: Tensor, weight: Tensor) -> Tensor:
    """`weight` divided among the four grid points around `at`, as in cubic (Lagrange) interpolation."""
    position = at * _CELLS
    cell = position.floor().clamp_(max=_CELLS - 1)
    index = cell.long()
    total = torch.zeros(_CELLS + 3, dtype=torch.float64, device=at.device)
    for offset, share in enumerate(_cubic(position - cell)):
        total += torch.bincount(index + offset, weights=share * weight, minlength=_CELLS + 3)
    return total


def _cubic(t: Values) -> tuple[Values, ...]:
    """The shares of the grid points −1, 0, 1 and 2 in something at `t`, between 0 and 1."""
    return (
        -t * (t - 1) * (t - 2) / 6,
        (t + 1) * (t - 1) * (t - 2) / 2,
        -(t + 1) * t * (t - 2) / 2,
        (t + 1) * t * (t - 1) / 6,
    )


def _cosines(padded: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_j g_j cos(πkj/cells) for k = 0 … points, from a grid with one point more at either end."""
    grid = padded[1:-1].copy()
    grid[1] += padded[0]  # reflected at 0 …
    grid[-2] += padded[-1]  # … and at 1
    grid[1:-1] /= 2  # each inner point appears twice in the even extension
    return np.fft.rfft(np.concatenate([grid, grid[-2:0:-1]])).real[: _POINTS + 1]


def _at(spectrum: NDArray[np.float64], points: int, sigma: float) -> float:
    """smECE_σ."""
    damped = spectrum[: points + 1] * np.exp(-((math.pi * sigma * np.arange(points + 1)) ** 2) / 2)
    damped[-1] = 0.0
    # ∫ over [0, 1] is the mean over the even, periodic extension, where equal weights are accurate.
    values = np.fft.irfft(damped, n=2 * points)
    return float(np.abs(values).sum() - _surplus(values, np.roll(values, -1)))


def _at_narrow(at: NDArray[np.float64], weight: NDArray[np.float64], sigma: float) -> float:
    """smECE_σ of a small σ, from the distinct confidences and their mean gaps: the empty stretches are left out."""
    if sigma == 0:
        return float(np.abs(weight).sum())
    cells, reach = math.ceil(_STEPS / sigma), _STEPS * _REACH
    position = at * cells
    cell = np.minimum(np.floor(position), cells - 1)
    nodes = np.concatenate([cell.astype(np.int64) + offset for offset in (-1, 0, 1, 2)])
    nodes = cells - np.abs(cells - np.abs(nodes))
    shares = np.concatenate([share * weight for share in _cubic(position - cell)])
    first, last = nodes.min(), nodes.max()
    low, high = nodes <= reach, nodes >= cells - reach
    nodes = np.concatenate([nodes, -nodes[low], 2 * cells - nodes[high]])
    nodes, of = np.unique(nodes, return_inverse=True)
    shares = np.bincount(of, weights=np.concatenate([shares, shares[low], shares[high]]))
    # Two neighbours further apart than this do not meet.
    place = reach + np.append(0, np.minimum(np.diff(nodes), 2 * reach + 1).cumsum())
    start = place[np.searchsorted(nodes, first)] - min(first, reach)
    end = place[np.searchsorted(nodes, last)] + min(cells - last, reach)
    size = int(place[-1]) + reach + 1
    kernel = np.exp(-((np.minimum(np.arange(size), np.arange(size, 0, -1)) / (sigma * cells)) ** 2) / 2)
    kernel[reach + 1 : size - reach] = 0
    smooth = np.fft.irfft(np.fft.rfft(np.bincount(place, weights=shares, minlength=size)) * np.fft.rfft(kernel), n=size)
    values = smooth[start : end + 1] / (sigma * cells * math.sqrt(2 * math.pi))
    trapezoid = np.abs(values).sum() - (abs(values[0]) + abs(values[-1])) / 2
    return float(trapezoid - _surplus(values[:-1], values[1:]))


def _surplus(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """What a sum of absolute values counts too much where the sign changes between two neighbours.

    The straight line between them is below |a| and |b| by ab / (a + b). The sixth of a + b is the first term of
    Euler and Maclaurin's formula, for the jump of the slope there.
    """
    crossing = left * right < 0
    a, b = np.abs(left[crossing]), np.abs(right[crossing])
    return float((a * b / (a + b) - (a + b) / 6).sum())


def _fixed_point(spectrum: NDArray[np.float64]) -> float:
    """The σ at which smECE_σ = σ: smECE_σ falls as σ grows, so there is one.

    Looked for on a coarse grid, then on the fine one. What smECE_σ exceeds σ by falls at least as fast as σ grows, so
    that it bounds the distance from the solution.
    """
    fine = partial(_at, spectrum, _POINTS)
    guess = _between(partial(_at, spectrum, _FEW), 0.0, 1.0)
    excess = fine(guess) - guess
    return _between(fine, max(0.0, min(guess, guess + excess)), min(1.0, max(guess, guess + excess)))


def _between(smoothed: Callable[[float], float], low: float, high: float) -> float:
    """The σ between two bounds at which `smoothed` is σ, by regula falsi in its Illinois form."""
    above, below = (smoothed(sigma) - sigma for sigma in (low, high))
    side = 0
    while above > 1e-12 and high - low > 1e-12:
        sigma = (low * below - high * above) / (below - above)
        left = smoothed(sigma) - sigma
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
