"""Temperature scaling: one number, fitted on held-out data, that divides the logits."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calmix.calibration.checks import Array, checked_logits, like
from calmix.errors import InputError

__all__ = ["Temperature"]

# The temperatures looked at. A classifier worse than chance ends at the upper one.
LOWEST, HIGHEST = 1e-3, 1e3
# A sample of this many rows is enough for a starting point that leaves few passes over the whole.
_SAMPLE = 4096


@dataclass(frozen=True)
class Temperature:
    """Logits divided by `temperature`: classes keep their order, so accuracy stays as it was.

    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> fitted = Temperature.fit(logits, np.array([0, 0, 1, 1]))  # sure of itself, right three times in four
    >>> round(fitted.temperature, 3)
    3.641
    >>> fitted(logits)[0].round(3)
    array([0.75, 0.25])
    """

    temperature: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"temperature is {self.temperature}; it must be a positive number")

    @classmethod
    def fit(cls, logits: Array, labels: Array) -> "Temperature":
        """The temperature between 0.001 and 1000 with the lowest NLL of `labels` (Guo et al. 2017).

        `labels` are integers [n], or target probabilities [n, K]. A logit of -inf marks a choice that does
        not exist. The NLL is convex in 1/T: Newton steps on it, kept in a shrinking bracket, always arrive,
        and the result is never worse on this data than T = 1.

        Data without a mistake has no optimum: the NLL falls for ever as T → 0. The scaling then stops where
        the NLL exceeds its limit by 1/(n + 2), which is as sure as n right answers can make one, or at T = 1
        if that is already below. Logits worse than chance end at T = 1000, next to uniform.
        """
        z, y = checked_logits(logits, labels)
        assert y is not None
        problem = _Problem.of(z, y)
        if problem.separated:
            return cls(1 / _sharpen(problem))
        start = 1.0
        if problem.gaps.shape[0] > 4 * _SAMPLE:
            start = _newton(problem.thinned(problem.gaps.shape[0] // _SAMPLE), start, tolerance=1e-3)
        beta = _newton(problem, start, tolerance=1e-10)
        return cls(1 / beta if problem.at(beta)[0] <= problem.at(1.0)[0] else 1.0)

    def __call__(self, logits: Array) -> Array:
        """Calibrated probabilities in float64, as numpy for numpy and on its device for a tensor."""
        z, _ = checked_logits(logits)
        return like(torch.softmax((z - z.amax(1, keepdim=True)) / self.temperature, 1), logits)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        return {"kind": "temperature", "temperature": self.temperature}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Temperature":
        """The temperature that `to_json` wrote down."""
        return cls(float(state["temperature"]))


@dataclass(frozen=True)
class _Problem:
    """Mean NLL as a function of β = 1/T, from each row's distance to its largest logit."""

    gaps: Tensor  # [n, K] float64, ≤ 0
    wanted: Tensor  # [n]: the (expected) gap of the label

    @classmethod
    def of(cls, z: Tensor, y: Tensor) -> "_Problem":
        # -inf becomes a number whose exponential is 0 too, because 0 × -inf is not.
        gaps = (z - z.amax(1, keepdim=True)).clamp_(min=-1e100)
        wanted = gaps.gather(1, y[:, None])[:, 0] if y.ndim == 1 else (gaps * y).sum(1) / y.sum(1)
        return cls(gaps, wanted)

    @property
    def separated(self) -> bool:
        """Whether every label already has the largest logit, while some other has less."""
        return bool((self.wanted == 0).all()) and bool((self.gaps < 0).any())

    def thinned(self, step: int) -> "_Problem":
        """Every `step`-th row."""
        return _Problem(self.gaps[::step].contiguous(), self.wanted[::step])

    def at(self, beta: float) -> tuple[float, float, float]:
        """The NLL at `beta`, its first and its second derivative."""
        weights = torch.exp(self.gaps * beta)
        total = weights.sum(1)
        weights.mul_(self.gaps)
        first = weights.sum(1).div_(total)
        second = weights.mul_(self.gaps).sum(1).div_(total).sub_(first.square())
        value = total.log().sub_(self.wanted, alpha=beta)
        nll, slope, curve = torch.stack([value.mean(), (first - self.wanted).mean(), second.mean()]).tolist()
        return nll, slope, curve


def _newton(problem: _Problem, beta: float, *, tolerance: float) -> float:
    """The β that minimises the NLL: Newton on its slope, bisection on log β where a step leaves the bracket."""
    low, high = 1 / HIGHEST, 1 / LOWEST
    for _ in range(100):
        _, slope, curve = problem.at(beta)
        if slope == 0:
            break
        low, high = (low, beta) if slope > 0 else (beta, high)
        step = beta - slope / curve if curve > 0 else math.inf
        new = step if low < step < high else math.sqrt(low * high)
        moved, beta = abs(new - beta), new
        if moved <= tolerance * beta or high - low <= tolerance * low:
            break
    return beta


def _sharpen(problem: _Problem) -> float:
    """The β ≥ 1 at which data without a mistake has an NLL 1/(n + 2) above its limit, by bisection."""
    ties = (problem.gaps == 0).sum(1).double().log().mean().item()
    goal = ties + 1 / (problem.gaps.shape[0] + 2)
    low, high = 1.0, 1 / LOWEST
    if problem.at(low)[0] <= goal:
        return low
    while high - low > 1e-9 * low:
        beta = math.sqrt(low * high)
        low, high = (beta, high) if problem.at(beta)[0] > goal else (low, beta)
    return high
