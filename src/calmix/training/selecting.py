"""Which epoch is kept: scores of the dev set at an epoch's end, higher is better."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calmix.calibration import Temperature, accuracy, ece, mcc, nll

__all__ = ["Selection", "dev_figures", "joint", "score"]

Selection = Literal["nll-ts", "nll", "accuracy", "mcc", "none"]


def dev_figures(
    logits: NDArray[np.float32], labels: NDArray[np.int64], *, expected: float | None = None
) -> dict[str, float]:
    """Return the dev set's figures that epochs are chosen by and users like to watch.

    `expected` is the temperature one would guess where there are few rows.
    """
    probs, fitted = Temperature(1.0)(logits), Temperature.fit(logits, labels, expected=expected)
    return {
        "accuracy": accuracy(probs, labels),
        "mcc": mcc(probs, labels),
        "ece": ece(probs, labels),
        "nll": nll(probs, labels),
        "nll-ts": nll(fitted(logits), labels),
        "temperature": fitted.temperature,
    }


def joint(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> list[list[float]]:
    """Return mean confidence and accuracy of batches of dev rows, drawn alike in every epoch: about a hundred of them.

    Their joint density over epochs is how confidence runs ahead of accuracy (Thulasidasan et al. 2019, figure 1).
    """
    probs = np.asarray(Temperature(1.0)(logits))
    sure, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    batches = np.array_split(np.random.default_rng(0).permutation(len(labels)), max(1, min(100, len(labels) // 20)))
    return [[round(float(sure[rows].mean()), 4), round(float(right[rows].mean()), 4)] for rows in batches]


def score(figures: dict[str, float], select: Selection) -> float:
    """Return what an epoch is worth; `none` values every epoch alike, so that the last one is kept.

    The default, NLL after temperature scaling, asks how good the probabilities are once their overall
    sharpness is corrected, which it will be. Raw NLL punishes the over-confidence that the correction takes
    away, and so favours epochs that have not finished learning.
    """
    if select == "none":
        return 0.0
    return figures[select] if select in ("accuracy", "mcc") else -figures[select]
