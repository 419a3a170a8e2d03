"""The figures of a set of predictions, as every command reports them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calmix.calibration import (
    accuracy,
    adaptive_ece,
    aurc,
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
from calmix.calibration.binned import bin_index
from calmix.calibration.confidence import confidences

__all__ = ["DECISIVE", "differences", "intervals", "json_safe", "measure", "measure_groups"]

DECISIVE = ("accuracy", "ece", "oe", "nll", "brier")
"""The figures that decisions hang on: they have intervals."""

# The most each of them can be.
_MOST = (1.0, 1.0, 1.0, np.inf, 2.0)

# Counts of draws kept for the next set of as many rows: 32 MiB.
_KEPT_DRAWS = 4_000_000

Probs = NDArray[np.float64]
Labels = NDArray[np.int64]


def measure(probs: Probs, labels: Labels, *, bins: int = 15) -> dict[str, float]:
    """Return every figure of labelled predictions; calibration errors over `bins` bins."""
    return {"n": len(labels)} | {name: metric(probs, labels) for name, metric in _metrics(bins).items()}


def intervals(
    probs: Probs,
    labels: Labels,
    *,
    bins: int = 15,
    n: int = 500,
    seed: int = 0,
    measured: Mapping[str, float] | None = None,
) -> dict[str, list[float]]:
    """Return the 95 % interval [low, high] of the figures that decisions hang on: `bootstrap`'s, in one pass.

    `measured` are the figures themselves, where they are known already.
    """
    figures = measured or {name: _metrics(bins)[name](probs, labels) for name in DECISIVE}
    estimate = np.array([figures[name] for name in DECISIVE])
    values = _resampled(np.asarray(probs, dtype=np.float64), np.asarray(labels), bins, n, seed)
    # A certain mistake has an infinite NLL, and so no interval.
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(values, [0.025, 0.975], axis=0) - (values.mean(axis=0) - estimate)
    # None of them is negative, and 0 has no sign; moved by the bias, a bound may have left what the figure can be.
    return {
        name: [0.0 if bound <= 0 else float(np.minimum(bound, most)) for bound in bounds]
        for name, most, *bounds in zip(DECISIVE, _MOST, low, high, strict=True)
    }


def differences(
    probs: Probs, other: Probs, labels: Labels, *, bins: int = 15, n: int = 500, seed: int = 0
) -> dict[str, list[float]]:
    """Return the 95 % interval of each figure minus the other model's on the same rows: `paired_bootstrap`'s."""
    estimate = np.array(
        [_metrics(bins)[name](probs, labels) - _metrics(bins)[name](other, labels) for name in DECISIVE]
    )
    mine, others = (
        _resampled(np.asarray(p, dtype=np.float64), np.asarray(labels), bins, n, seed) for p in (probs, other)
    )
    with np.errstate(invalid="ignore"):
        values = mine - others
        low, high = np.quantile(values, [0.025, 0.975], axis=0) - (values.mean(axis=0) - estimate)
    return {name: [float(a), float(b)] for name, a, b in zip(DECISIVE, low, high, strict=True)}


def _resampled(probs: Probs, labels: Labels, bins: int, n: int, seed: int) -> NDArray[np.float64]:
    """Return accuracy, ECE, OE, NLL and Brier score of `n` resamples of the rows, from sums over rows and bins.

    `bootstrap` measures any metric anew on each resample. These are sums, so that it is enough to count how often
    each row was drawn: hundreds of times faster, which is what lets every run have intervals.
    """
    rows, gold = len(labels), probs[np.arange(len(labels)), labels]
    confidence, hit = (np.asarray(part, dtype=np.float64) for part in confidences(probs, labels))
    bin_of = np.asarray(bin_index(torch.from_numpy(confidence), bins))
    inside = (bin_of[:, None] == np.unique(bin_of)).astype(np.float64)
    with np.errstate(divide="ignore"):
        means = np.stack([hit, -np.log(gold), np.square(probs).sum(axis=1) - 2 * gold + 1], axis=1)
    columns = np.concatenate([means, inside, inside * confidence[:, None], inside * hit[:, None]], axis=1)
    with np.errstate(invalid="ignore"):
        sums = np.concatenate([drawn @ columns for drawn in _draws(rows, n, seed)])
    count, sure, right = np.split(sums[:, 3:], 3, axis=1)
    gap = sure - right
    over = (sure / np.maximum(count, 1) * np.maximum(gap, 0)).sum(axis=1)
    accuracy_, nll_, brier_ = sums[:, :3].T
    return np.stack([accuracy_, np.abs(gap).sum(axis=1), over, nll_, brier_], axis=1) / rows


def _draws(rows: int, n: int, seed: int) -> Iterable[NDArray[np.float64]]:
    """Return how often each row is drawn in each of `n` resamples, in blocks; of small sets, as they were before."""
    if rows * n <= _KEPT_DRAWS:
        return (_small_draws(rows, n, seed),)
    return _blocks(rows, n, seed)


@lru_cache(maxsize=4)
def _small_draws(rows: int, n: int, seed: int) -> NDArray[np.float64]:
    return np.concatenate(list(_blocks(rows, n, seed)))


def _blocks(rows: int, n: int, seed: int) -> Iterator[NDArray[np.float64]]:
    generator, size = np.random.default_rng(seed), max(1, _KEPT_DRAWS // rows)
    for start in range(0, n, size):
        counts = [np.bincount(generator.integers(0, rows, rows), minlength=rows) for _ in range(min(size, n - start))]
        yield np.stack(counts).astype(np.float64)


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
