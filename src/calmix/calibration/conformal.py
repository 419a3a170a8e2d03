"""Prediction sets that contain the true class as often as promised."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calmix.calibration.checks import Array, checked_chunks, checked_probs, like
from calmix.errors import InputError

__all__ = ["ConformalSets"]


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that contain the true one with probability at least `level` (split conformal).

    A class belongs to the set if its score is at most `quantile`; None (too few calibration rows for the
    level) lets every class in. A set may be empty: then no class looks like the calibration data.
    """

    quantile: float | None
    level: float
    score: Literal["lac", "aps"]

    @classmethod
    def fit(
        cls, probs: Array, labels: Array, *, level: float = 0.9, score: Literal["lac", "aps"] = "lac"
    ) -> "ConformalSets":
        """The ⌈(n + 1)·level⌉-th smallest score of the true classes.

        "lac" (Sadinle et al. 2019) scores a class 1 − p and makes the smallest sets on average; "aps"
        (Romano et al. 2020, without its random tie-break) scores it by the probability of all classes at
        least as likely, and makes larger sets for harder rows.
        """
        if not 0 < level < 1:
            raise InputError(f"level is {level}; it must lie between 0 and 1")
        scores = torch.cat(
            [_scores(c.probs, score).gather(1, c.labels[:, None])[:, 0] for c in checked_chunks(probs, labels)]
        )
        # Without the allowance, 0.9 × 10 that came out as 9.000…01 would count as 10.
        rank = math.ceil((len(scores) + 1) * level - 1e-9)
        quantile = None if rank > len(scores) else float(scores.kthvalue(rank).values)
        return cls(quantile, level, score)

    def __call__(self, probs: Array) -> Array:
        """Which classes are in each row's set, as bools [n, K]."""
        limit = math.inf if self.quantile is None else self.quantile
        parts = [_scores(p, self.score) <= limit for p in checked_probs(probs)]
        return like(torch.cat(parts), probs)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        return {"kind": "conformal", "quantile": self.quantile, "level": self.level, "score": self.score}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "ConformalSets":
        """The sets that `to_json` wrote down."""
        return cls(**{key: value for key, value in state.items() if key != "kind"})


def _scores(p: Tensor, score: str) -> Tensor:
    """How strange each class would be as the label."""
    p = p.double().contiguous()
    if score == "lac":
        return 1 - p
    if score != "aps":
        raise InputError(f"score is {score!r}; it must be 'lac' or 'aps'")
    falling = p.sort(1, descending=True).values
    last = torch.searchsorted(-falling, -p, right=True) - 1  # equal probabilities are counted together
    return falling.cumsum(1).gather(1, last)
