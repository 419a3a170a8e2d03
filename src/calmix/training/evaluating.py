"""The figures of a set of predictions, as every command reports them."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.calibration import (
    accuracy,
    adaptive_ece,
    aurc,
    bootstrap,
    brier,
    classwise_ece,
    debiased_ece,
    ece,
    macro_f1,
    mcc,
    mce,
    nll,
    oe,
    smooth_ece,
)

__all__ = ["intervals", "json_safe", "measure", "measure_groups"]

Probs = NDArray[np.float64]
Labels = NDArray[np.int64]


def measure(probs: Probs, labels: Labels, *, bins: int = 15) -> dict[str, float]:
    """Return every figure of labelled predictions; calibration errors over `bins` bins."""
    return {"n": len(labels)} | {name: metric(probs, labels) for name, metric in _metrics(bins).items()}


def intervals(probs: Probs, labels: Labels, *, bins: int = 15, n: int = 500, seed: int = 0) -> dict[str, list[float]]:
    """Return the 95 % bootstrap interval [low, high] of the figures that decisions hang on."""
    found = {}
    for name in ("accuracy", "ece", "oe", "nll", "brier"):
        # A certain mistake has an infinite NLL, and so no interval.
        with np.errstate(invalid="ignore"):
            interval = bootstrap(_metrics(bins)[name], probs, labels, n=n, generator=seed)
        found[name] = [0.0 if interval.low < 0 else interval.low, interval.high]
    return found


def measure_groups(
    probs: Probs, labels: Labels, groups: Sequence[Any], *, bins: int = 15
) -> dict[str, dict[str, float]]:
    """Return the figures of each group of rows, largest group first."""
    values, positions, counts = np.unique([str(g) for g in groups], return_inverse=True, return_counts=True)
    return {
        str(values[k]): measure(probs[positions == k], labels[positions == k], bins=bins)
        for k in np.argsort(-counts, kind="stable")
    }


def json_safe(value: Any) -> Any:
    """Return figures as JSON can hold them: numbers that are not finite become None, arrays and tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [json_safe(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _metrics(bins: int) -> dict[str, Callable[[Any, Any], float]]:
    return {
        "accuracy": accuracy,
        "macro_f1": macro_f1,
        "mcc": mcc,
        "ece": partial(ece, bins=bins),
        "debiased_ece": partial(debiased_ece, bins=bins),
        "smooth_ece": smooth_ece,
        "adaptive_ece": partial(adaptive_ece, bins=bins),
        "classwise_ece": partial(classwise_ece, bins=bins),
        "mce": partial(mce, bins=bins),
        "oe": partial(oe, bins=bins),
        "nll": nll,
        "brier": brier,
        "aurc": aurc,
    }
