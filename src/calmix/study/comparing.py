"""Does a difference stand? Paired bootstrap over seeds and test rows at once, vectorised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calmix.study.collecting import Predictions

__all__ = ["COMPARED", "Difference", "Resampled", "Resamples", "difference", "resampled"]

# What adding up may leave of nothing.
_ROUNDING = 1e-12

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
        """Whether the interval excludes 0; one that ends at it does not."""
        return self.low > _ROUNDING or self.high < -_ROUNDING


class Resamples:
    """How often each test row, and each seed, is drawn in each of `n` resamples: the same for all methods."""

    def __init__(self, rows: int, *, n: int = 1000, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, rows])
        self.rows = np.empty((n, rows), dtype=np.float32)
        for counts in self.rows:
            counts[:] = np.bincount(rng.integers(0, rows, rows), minlength=rows)
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


def resampled(
    p: Predictions, figures: Sequence[str], resamples: Resamples, *, scaled: bool, bins: int
) -> dict[str, Resampled]:
    """Return each figure of the rows as they are, and of every resample of them.

    All figures are functions of sums over rows: one product with the resamples gives all of these sums.
    """
    columns = _columns(p.probs(scaled=scaled), p.labels, figures, bins)
    # Nothing times infinity is no number: such a figure is infinite in every resample.
    infinite = [name for name, values in columns.items() if not np.isfinite(values).all()]
    columns |= {name: np.zeros_like(columns[name]) for name in infinite}
    ends = np.cumsum([0, *(values.shape[1] for values in columns.values())])
    stacked = np.concatenate(list(columns.values()), axis=1)
    whole, drawn = stacked.sum(axis=0, keepdims=True), resamples.rows @ stacked.astype(np.float32)
    found: dict[str, Resampled] = {}
    for figure in figures:
        if figure in infinite:
            found[figure] = float("inf"), np.full(len(drawn), np.inf)
            continue
        both = []
        for sums in (whole, drawn):
            parts = {name: sums[:, ends[k] : ends[k + 1]].astype(np.float64) for k, name in enumerate(columns)}
            both.append(_figure(figure, parts, len(p.labels)))
        found[figure] = float(both[0][0]), both[1]
    return found


def _columns(probs: Floats, labels: NDArray[np.int64], figures: Sequence[str], bins: int) -> dict[str, Floats]:
    """Return what is summed over rows for these figures [rows, so many]."""
    rows = np.arange(len(labels))
    winner = probs.argmax(axis=1)
    hit = (winner == labels).astype(np.float64)
    found: dict[str, Floats] = {}
    if "accuracy" in figures:
        found["accuracy"] = hit[:, None]
    if "nll" in figures:
        with np.errstate(divide="ignore"):
            found["nll"] = -np.log(probs[rows, labels])[:, None]
    if "brier" in figures:
        found["brier"] = ((probs**2).sum(axis=1) - 2 * probs[rows, labels] + 1)[:, None]
    if "mcc" in figures:
        found["mcc"] = _one_hot(winner * probs.shape[1] + labels, probs.shape[1] ** 2)
    if "ece" in figures or "oe" in figures:
        confidence = probs[rows, winner]
        place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
        full, place = np.unique(place, return_inverse=True)  # with few classes, most bins are empty
        one_hot = _one_hot(place, len(full))
        found["gap"] = one_hot * (confidence - hit)[:, None]
        if "oe" in figures:
            found |= {"count": one_hot, "sure": one_hot * confidence[:, None]}
    return found


def _one_hot(codes: NDArray[np.int64], width: int) -> Floats:
    found = np.zeros((len(codes), width))
    found[np.arange(len(codes)), codes] = 1.0
    return found


def _figure(figure: str, sums: Mapping[str, Floats], n: int) -> Floats:
    """Return a figure from the sums over the rows of each resample."""
    if figure == "mcc":
        return _mcc(sums["mcc"], n)
    if figure == "ece":
        return np.asarray(np.abs(sums["gap"]).sum(axis=1) / n)
    if figure == "oe":
        sure = sums["sure"] / np.maximum(sums["count"], 1)
        return np.asarray((sure * np.maximum(sums["gap"], 0)).sum(axis=1) / n)
    return np.asarray(sums[figure][:, 0] / n)


def _mcc(cells: Floats, n: int) -> Floats:
    classes = round(np.sqrt(cells.shape[1]))
    table = cells.reshape(-1, classes, classes)
    predicted, actual = table.sum(axis=2), table.sum(axis=1)
    right = np.trace(table, axis1=1, axis2=2)
    spread = (n**2 - (predicted**2).sum(axis=1)) * (n**2 - (actual**2).sum(axis=1))
    top = right * n - (predicted * actual).sum(axis=1)
    return np.asarray(np.where(spread > 0, top / np.sqrt(np.maximum(spread, 1e-300)), 0.0))
