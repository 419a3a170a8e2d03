"""The figures of a set of predictions, as every command reports them."""

import numpy as np
from numpy.typing import NDArray

from calmix.metrics import accuracy, brier, ece, macro_f1, mcc, nll, oe

__all__ = ["measure", "softmax"]


def softmax(logits: NDArray[np.floating], temperature: float = 1.0) -> NDArray[np.float64]:
    """Return probabilities in float64; −inf (a choice that is not there) becomes exactly 0."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    exp = np.exp(scaled)
    return np.asarray(exp / exp.sum(axis=-1, keepdims=True))


def measure(probs: NDArray[np.float64], labels: NDArray[np.int64], *, bins: int = 15) -> dict[str, float]:
    """Return accuracy, macro-F1, MCC, ECE, OE, NLL and Brier score of labelled predictions."""
    return {
        "n": len(labels),
        "accuracy": accuracy(probs, labels),
        "macro_f1": macro_f1(probs, labels),
        "mcc": mcc(probs, labels),
        "ece": ece(probs, labels, bins=bins),
        "oe": oe(probs, labels, bins=bins),
        "nll": nll(probs, labels),
        "brier": brier(probs, labels),
    }
