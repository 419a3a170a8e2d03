"""Does a difference stand? Paired bootstrap over seeds and test rows at once, vectorised."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calmix.study.collecting import Predictions

__all__ = ["COMPARED", "Difference", "Resampled", "Resamples", "difference", "resampled"]

COMPARED = ("accuracy", "mcc", "ece", "oe", "nll", "brier")
"""The figures whose differences are tested."""

Floats = NDArray[np.float64]
Resampled = tuple[float, Floats]
"""A figure, and its value in each resample."""


@dataclass(frozen=True)
class Difference:
    """A figure's mean over seeds minus the baseline's, and its 95 % interval."""

    estimate: float
    low: float
    high: float

    @property
    def stands(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class Resamples:
    """How often each test row, and each seed, is drawn in each of `n` resamples: the same for all methods."""

    def __init__(self, rows: int, *, n: int = 1000, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, rows])
        self.rows = rng.multinomial(rows, np.full(rows, 1 / rows), size=n).astype(np.float32)
        self._rng_seed = [seed, rows, 1]

    def seeds(self, count: int) -> Floats:
        """Return the weight of each of `count` seeds in each resample [n, count]."""
        rng = np.random.default_rng(self._rng_seed)
        return np.asarray(rng.multinomial(count, np.full(count, 1 / count), size=len(self.rows)) / count)


def difference(mine: Sequence[Resampled], baseline: Sequence[Resampled], resamples: Resamples) -> Difference:
    """Return how far a figure's mean over seeds is from the baseline's, with an interval.

    Seed by seed, both on the same resampled rows; the seeds are resampled too. As in `calmix.metrics.bootstrap`,
    the interval is moved by the bias that resampling itself shows, which calibration errors have.
    """
    weights = resamples.seeds(len(mine))
    estimate = float(np.mean([ours[0] - theirs[0] for ours, theirs in zip(mine, baseline, strict=True)]))
    values = np.stack([ours[1] - theirs[1] for ours, theirs in zip(mine, baseline, strict=True)], axis=1)
    drawn = (weights * values).sum(axis=1)
    if not np.isfinite(drawn).all():
        return Difference(estimate, -np.inf, np.inf)
    bias = drawn.mean() - estimate
    # What so many draws differ by anyway is no bias: moved by it, an interval that ends at 0 would exclude it.
    if abs(bias) < 3 * drawn.std() / np.sqrt(len(drawn)):
        bias = 0.0
    low, high = np.quantile(drawn, [0.025, 0.975]) - bias
    return Difference(estimate, float(low), float(high))


def resampled(p: Predictions, figure: str, resamples: Resamples, *, scaled: bool, bins: int) -> Resampled:
    """Return a figure of the rows as they are, and of every resample of them."""
    probs, labels = p.probs(scaled=scaled), p.labels
    n, rows = len(labels), np.arange(len(labels))
    winner = probs.argmax(axis=1)
    hit = (winner == labels).astype(np.float64)
    counts = resamples.rows
    if figure in ("accuracy", "nll", "brier"):
        if figure == "accuracy":
            value = hit
        elif figure == "nll":
            with np.errstate(divide="ignore"):
                value = -np.log(probs[rows, labels])
        else:
            value = (probs**2).sum(axis=1) - 2 * probs[rows, labels] + 1
        if not np.isfinite(value).all():
            return float("inf"), np.full(len(counts), np.inf)
        return float(value.mean()), np.asarray(counts @ value.astype(np.float32), dtype=np.float64) / n
    if figure == "mcc":
        return _mcc(winner, labels, probs.shape[1], counts)
    confidence = probs[rows, winner]
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    one_hot = np.zeros((n, bins), dtype=np.float32)
    one_hot[rows, place] = 1.0
    gap = one_hot * (confidence - hit)[:, None].astype(np.float32)
    whole = np.ones((1, n), dtype=np.float32)
    if figure == "ece":
        return float((np.abs(whole @ gap).sum(axis=1) / n)[0]), np.asarray(
            np.abs(counts @ gap).sum(axis=1) / n, np.float64
        )
    sure = one_hot * confidence[:, None].astype(np.float32)

    def oe(drawn: NDArray[np.float32]) -> Floats:
        full = np.maximum(drawn @ one_hot, 1)
        return np.asarray((drawn @ sure / full * np.maximum(drawn @ gap, 0)).sum(axis=1) / n, dtype=np.float64)

    return float(oe(whole)[0]), oe(counts)


def _mcc(
    winner: NDArray[np.int64], labels: NDArray[np.int64], classes: int, counts: NDArray[np.float32]
) -> tuple[float, Floats]:
    n = len(labels)
    cells = np.zeros((n, classes * classes), dtype=np.float32)
    cells[np.arange(n), winner * classes + labels] = 1.0

    def mcc(drawn: NDArray[np.float32]) -> Floats:
        table = (drawn @ cells).astype(np.float64).reshape(-1, classes, classes)
        predicted, actual = table.sum(axis=2), table.sum(axis=1)
        right = np.trace(table, axis1=1, axis2=2)
        spread = (n**2 - (predicted**2).sum(axis=1)) * (n**2 - (actual**2).sum(axis=1))
        top = right * n - (predicted * actual).sum(axis=1)
        return np.asarray(np.where(spread > 0, top / np.sqrt(np.maximum(spread, 1e-300)), 0.0))

    return float(mcc(np.ones((1, n), dtype=np.float32))[0]), mcc(counts)
