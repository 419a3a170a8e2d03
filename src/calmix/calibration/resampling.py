"""Intervals for any metric, and for the difference between two models, by resampling rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import Array, pair, whole
from calmix.errors import InputError

__all__ = ["Interval", "Metric", "bootstrap", "paired_bootstrap"]

# Any: `metric(probs, labels)`, whatever else it takes.
Metric = Callable[[Any, Any], float]


@dataclass(frozen=True)
class Interval:
    """An estimate and the range around it that covers the truth in about `level` of all data sets."""

    estimate: float
    low: float
    high: float
    level: float


def bootstrap(
    metric: Metric,
    probs: Array,
    labels: Array,
    *,
    n: int = 1000,
    level: float = 0.95,
    generator: np.random.Generator | int,
) -> Interval:
    """The interval of `metric(probs, labels)` over `n` resamples of the rows; a seed will do as generator.

    Percentiles of the resampled values, moved by the bias the resampling itself shows (their mean minus the
    estimate). Without that move, the interval of any calibration error lies too high, because a resample
    repeats rows and looks worse calibrated than the data. Options of the metric: `functools.partial`.

    Where the estimate is infinite, as the NLL of a label that was given probability 0, so are both bounds: what
    has happened once can happen again, and the mean over all data is infinite too.

    >>> from calmix.metrics import accuracy
    >>> probs = np.array([[0.9, 0.1], [0.2, 0.8]] * 50)
    >>> labels = np.array([0, 1] * 40 + [1, 1] * 10)
    >>> interval = bootstrap(accuracy, probs, labels, generator=0)
    >>> interval.estimate, round(interval.low, 2), round(interval.high, 2)
    (0.9, 0.84, 0.95)
    """
    pair(probs, labels, soft=True)
    return _interval(metric, (probs, labels), n, level, generator)


def paired_bootstrap(
    metric: Metric,
    probs: Array,
    other: Array,
    labels: Array,
    *,
    n: int = 1000,
    level: float = 0.95,
    generator: np.random.Generator | int,
) -> Interval:
    """The interval of `metric(probs, labels) − metric(other, labels)`, both on the same resampled rows.

    Two models on one test set share its hard rows: the difference is known far better than either value. If
    the interval excludes 0, the models differ. Two infinite values have no difference: that is an error.
    """
    pair(probs, labels, soft=True)
    pair(other, labels, name="other", soft=True)
    arrays = (probs, other, labels)
    return _interval(lambda p, q, y: metric(p, y) - metric(q, y), arrays, n, level, generator)


def _interval(
    statistic: Callable[..., float],
    arrays: tuple[Array, ...],
    n: int,
    level: float,
    generator: np.random.Generator | int,
) -> Interval:
    n = whole(n, "n")
    if n < 2 or not 0 < level < 1:
        raise InputError(f"n is {n} and level is {level}; n must be at least 2 and level between 0 and 1")
    generator = _numpy_generator(generator)
    estimate, rows = float(statistic(*arrays)), len(arrays[0])
    if math.isnan(estimate):
        raise InputError(
            "the metric is not a number on these rows (or infinite for both models); take one that is finite, as brier"
        )
    if math.isinf(estimate):
        return Interval(estimate, estimate, estimate, level)
    values = np.empty(n)
    for i in range(n):
        chosen = generator.integers(0, rows, rows)
        values[i] = statistic(*(_rows(array, chosen) for array in arrays))
    bias = values.mean() - estimate
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]) - bias
    return Interval(estimate, float(low), float(high), level)


def _numpy_generator(generator: np.random.Generator | int) -> np.random.Generator:
    try:
        return np.random.default_rng(generator)
    except (TypeError, ValueError):
        kind = type(generator)
        given = generator if isinstance(generator, int) else f"a {kind.__module__}.{kind.__qualname__}"
        raise InputError(f"generator is {given}; it must be a seed, 0 or above, or a numpy.random.Generator") from None


def _rows(array: Array, chosen: NDArray[np.int64]) -> Array:
    if isinstance(array, Tensor):
        return array.index_select(0, torch.from_numpy(chosen).to(array.device))
    return cast(Array, np.asarray(array)[chosen])
