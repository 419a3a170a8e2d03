"""Answer only when sure enough: a threshold on confidence that keeps a promised accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calmix.calibration.checks import Array, checked_probs, like
from calmix.calibration.confidence import confidences
from calmix.errors import InputError

__all__ = ["SelectiveThreshold", "best_within_reach", "binomial_tail", "highest_promise", "rows_needed"]

# Thresholds tried, strictest first. They are evenly spaced in log-odds, and fixed before any data is seen:
# thresholds taken from the same data would void the guarantee.
_GRID = 1 / (1 + np.exp(-np.append(np.linspace(8, -2, 101), -np.inf)))
# The allowed error is divided among these places of the grid, because a single start at the strict end,
# where few rows are accepted, would seldom get past them.
_STARTS = np.arange(0, 100, 10)


@dataclass(frozen=True)
class SelectiveThreshold:
    """Accept a prediction if its confidence is at least `threshold`; None accepts nothing.

    With probability 1 − `error` over the calibration data, the accuracy among accepted predictions on new
    data of the same kind is at least `accuracy`.
    """

    threshold: float | None
    accuracy: float  # what was asked for
    error: float
    coverage: float  # the share of the calibration rows that is accepted

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold}; it must lie in 0 … 1, or be None to accept nothing")

    @classmethod
    def fit(cls, probs: Array, labels: Array, *, accuracy: float, error: float = 0.05) -> "SelectiveThreshold":
        """The lowest threshold on a fixed grid for which `accuracy` among the accepted can be certified.

        Learn-then-Test (Angelopoulos et al. 2021): each threshold gets the exact binomial p-value of the
        hypothesis that its accuracy is lower than asked for. They are tested from strict to lenient in a
        fixed sequence with ten starts; where a threshold passes, its share of `error` is handed on to the
        next (the fallback procedure, Wiens & Dmitrienko 2005). The only assumption is that calibration and
        new data are drawn alike; the model need not be calibrated, nor its accuracy rise with confidence.
        """
        if not (0 < accuracy < 1 and 0 < error < 1):
            raise InputError(f"accuracy is {accuracy} and error is {error}; both must lie between 0 and 1")
        confidence, hit = confidences(probs, labels)
        order = confidence.sort(descending=True)
        wrong = np.append(0, (~hit[order.indices]).cumsum(0).cpu().numpy())
        accepted = len(hit) - np.searchsorted(order.values.flip(0).cpu().numpy(), _GRID)
        share, threshold, coverage = 0.0, None, 0.0
        for place, rows in enumerate(accepted):
            share += error / len(_STARTS) if place in _STARTS else 0.0
            if share and binomial_tail(int(wrong[rows]), int(rows), 1 - accuracy) <= share:
                threshold, coverage = float(_GRID[place]), float(rows / len(hit))
            else:
                share = 0.0
        return cls(threshold, accuracy, error, coverage)

    def __call__(self, probs: Array) -> Array:
        """Which rows of `probs` to accept, as bools."""
        least = math.inf if self.threshold is None else self.threshold
        parts = [p.amax(1).double() >= least for p in checked_probs(probs)]
        return like(torch.cat(parts), probs)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        return {
            "kind": "selective",
            "threshold": self.threshold,
            "accuracy": self.accuracy,
            "error": self.error,
            "coverage": self.coverage,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "SelectiveThreshold":
        """The threshold that `to_json` wrote down."""
        return cls(**{key: value for key, value in state.items() if key != "kind"})


def highest_promise(
    probs: Array, labels: Array, levels: Sequence[float], *, error: float = 0.05
) -> SelectiveThreshold | None:
    """The threshold for the highest of these accuracies that can be certified, or None.

    Each level is tested with its share of `error`, so that choosing among them costs no certainty.
    """
    for level in sorted(levels, reverse=True):
        found = SelectiveThreshold.fit(probs, labels, accuracy=level, error=error / len(levels))
        if found.threshold is not None:
            return replace(found, error=error)
    return None


def rows_needed(accuracy: float, *, error: float = 0.05) -> int:
    """The fewest rows from which `SelectiveThreshold.fit` can certify an accuracy: all sure, and all right.

    >>> rows_needed(0.95)
    104
    """
    return math.ceil(math.log(error / len(_STARTS)) / math.log(accuracy))


def best_within_reach(rows: int, *, error: float = 0.05) -> float:
    """The highest accuracy that so many rows could certify, all sure and all right, in whole percent rounded down."""
    return math.floor(100 * math.exp(math.log(error / len(_STARTS)) / max(1, rows))) / 100


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """P(X ≤ successes) for X ~ Binomial(trials, probability), with 0 < probability < 1.

    >>> round(binomial_tail(1, 3, 0.5), 12)
    0.5
    """
    if successes >= trials:
        return 1.0
    k = np.arange(1, successes + 1, dtype=np.float64)
    odds = math.log(probability) - math.log1p(-probability)
    # Logarithms of the terms, each from the one before.
    steps: NDArray[np.float64] = np.log((trials - k + 1) / k) + odds
    terms = trials * math.log1p(-probability) + np.append(0, steps.cumsum())
    top = terms.max()
    return float(min(1.0, math.exp(top) * np.exp(terms - top).sum()))
