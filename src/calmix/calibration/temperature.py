"""Temperature scaling: one number, fitted on held-out data, that divides the logits."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calmix.calibration.checks import Array, checked_labels, checked_logits, like
from calmix.errors import InputError

__all__ = ["Temperature"]

# The temperatures looked at. A classifier worse than chance ends at the upper one.
LOWEST, HIGHEST = 1e-3, 1e3
# A sample of this many rows is enough for a starting point that leaves few passes over the whole.
_SAMPLE = 2048
# Elements per chunk: on a CPU small enough for the cache, elsewhere large enough to hide the launches.
_CPU_CHUNK = 1 << 18
_DEVICE_CHUNK = 1 << 24


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
    def fit(cls, logits: Array, labels: Array, *, expected: float | None = None) -> "Temperature":
        """The temperature between 0.001 and 1000 with the lowest NLL of `labels` (Guo et al. 2017).

        `labels` are integers [n], or target probabilities [n, K]. A logit of -inf marks a choice that does
        not exist. The NLL is convex in 1/T: Newton steps on it, kept in a shrinking bracket, always arrive,
        and the result is never worse on this data than T = 1.

        Data without a mistake has no optimum: the NLL falls for ever as T → 0. The scaling then stops where
        the NLL exceeds its limit by 1/(n + 2), which is as sure as n right answers can make one, or at T = 1
        if that is already below. Logits worse than chance end at T = 1000, next to uniform.

        With few rows the optimum may be anywhere. `expected` is the temperature one would guess without data, and
        counts as much as one row: `expected`/T + log T is added to the sum over rows, a gamma prior on 1/T. With
        many rows it does not matter.
        """
        z, y = checked_labels(logits, labels)
        if expected is not None and not (math.isfinite(expected) and expected > 0):
            raise InputError(f"expected is {expected}; it must be a positive number")
        problem = _Problem.of(z, y, expected)
        if expected is None and problem.separated:
            return cls(1 / _sharpen(problem))
        start, rows = 1.0, problem.wanted.shape[0]
        if rows > 4 * _SAMPLE:
            start = _newton(problem.thinned(rows // _SAMPLE), start)
        beta = _newton(problem, start)
        # Closer to 1 than this, rounding decides which of the two has the lower NLL.
        return cls(1 / beta if abs(beta - 1) > 1e-7 else 1.0)

    def __call__(self, logits: Array) -> Array:
        """Calibrated probabilities in float64, as numpy for numpy and on its device for a tensor."""
        z = checked_logits(logits)
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

    gaps: Tensor  # [K, n] float64, ≤ 0; classes first, because summing over the first dimension is fast
    wanted: Tensor  # [n]: the (expected) gap of the label
    expected: float | None = None  # the temperature that one row more would have

    @classmethod
    def of(cls, z: Tensor, y: Tensor, expected: float | None) -> "_Problem":
        z = z.t().contiguous()
        # -inf becomes a number whose exponential is 0 too, because 0 × -inf is not.
        gaps = (z - z.amax(0)).clamp_(min=-1e100)
        wanted = gaps.gather(0, y[None])[0] if y.ndim == 1 else (gaps * y.t()).sum(0) / y.sum(1)
        return cls(gaps, wanted, expected)

    @property
    def separated(self) -> bool:
        """Whether every label already has the largest logit, while some other has less."""
        return bool((self.wanted == 0).all()) and bool((self.gaps < 0).any())

    def thinned(self, step: int) -> "_Problem":
        """Every `step`-th row."""
        return _Problem(self.gaps[:, ::step].contiguous(), self.wanted[::step], self.expected)

    def at(self, beta: float) -> tuple[float, float, float]:
        """The NLL at `beta`, its first and its second derivative."""
        classes, rows = self.gaps.shape
        width = max(1, (_CPU_CHUNK if self.gaps.device.type == "cpu" else _DEVICE_CHUNK) // classes)
        room = self.gaps.new_empty(classes, min(width, rows))
        sums = self.gaps.new_zeros(3)
        for start in range(0, rows, width):
            gaps, wanted = self.gaps[:, start : start + width], self.wanted[start : start + width]
            weights = torch.mul(gaps, beta, out=room[:, : gaps.shape[1]]).exp_()
            total = weights.sum(0)
            first = weights.mul_(gaps).sum(0).div_(total)
            second = weights.mul_(gaps).sum(0).div_(total).sub_(first.square())
            value = total.log_().sub_(wanted, alpha=beta)
            sums += torch.stack([value.sum(), first.sub_(wanted).sum(), second.sum()])
        if self.expected is not None:
            sums += sums.new_tensor([self.expected * beta - math.log(beta), self.expected - 1 / beta, beta**-2])
        nll, slope, curve = (sums / rows).tolist()
        return nll, slope, curve


def _newton(problem: _Problem, beta: float) -> float:
    """The β that minimises the NLL: Newton on its slope, bisection on log β where a step leaves the bracket."""
    low, high = 1 / HIGHEST, 1 / LOWEST
    for _ in range(200):
        _, slope, curve = problem.at(beta)
        if slope == 0:
            break
        low, high = (low, beta) if slope > 0 else (beta, high)
        step = beta - slope / curve if curve > 0 else math.inf
        inside = low < step < high
        before, beta = beta, step if inside else math.sqrt(low * high)
        # A Newton step about squares the error, so a step of 1e-6 ends at 1e-12.
        if (inside and abs(beta - before) <= 1e-6 * beta) or high - low <= 1e-12 * low:
            break
    return beta


def _sharpen(problem: _Problem) -> float:
    """The β ≥ 1 at which data without a mistake has an NLL 1/(n + 2) above its limit, by bisection."""
    ties = (problem.gaps == 0).sum(0).double().log().mean().item()
    goal = ties + 1 / (problem.wanted.shape[0] + 2)
    low, high = 1.0, 1 / LOWEST
    if problem.at(low)[0] <= goal:
        return low
    while high - low > 1e-9 * low:
        beta = math.sqrt(low * high)
        low, high = (beta, high) if problem.at(beta)[0] > goal else (low, beta)
    return high
