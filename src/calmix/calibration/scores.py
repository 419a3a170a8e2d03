"""Scores that are means over rows or follow from class counts: no bins."""

import math

import torch
from torch import Tensor

from calmix.calibration.checks import Array, checked_chunks, pair
from calmix.calibration.confidence import first_largest, stream
from calmix.errors import InputError

__all__ = ["accuracy", "brier", "macro_f1", "mcc", "nll", "truth_distance"]


def nll(probs: Array, labels: Array) -> float:
    """The mean negative log-likelihood in nats; infinite where a label was given probability 0.

    `labels` are integers [n], or target probabilities [n, K] (then this is the cross-entropy).

    >>> import numpy as np
    >>> round(nll(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])), 4)
    0.4904
    """
    total, rows = 0.0, 0
    for _, p, y in checked_chunks(probs, labels, soft=True):
        if y.ndim == 1:
            total -= _item(p.gather(1, y[:, None]).double().log().sum())
        else:
            total -= _item(torch.xlogy(y.double(), p.double()).sum())
        rows += len(p)
    return total / rows


def brier(probs: Array, labels: Array, *, positive_class: int | None = None) -> float:
    """The mean squared distance between probabilities and outcomes, summed over classes (0 to 2).

    `labels` are integers [n], or target probabilities [n, K]. `positive_class=k` scores class k alone, in
    0 to 1: for two classes that is half of the sum.

    >>> import numpy as np
    >>> probs = np.array([[0.8, 0.2], [0.4, 0.6]])
    >>> round(brier(probs, np.array([0, 1])), 6), round(brier(probs, np.array([0, 1]), positive_class=1), 6)
    (0.2, 0.1)
    """
    total, rows = 0.0, 0
    if positive_class is not None:
        for confidence, hit in stream(probs, labels, positive_class):
            total += _item((confidence.double() - hit.double()).square().sum())
            rows += len(hit)
        return total / rows
    for _, p, y in checked_chunks(probs, labels, soft=True):
        # A copy even of float64 input, because the outcome is subtracted in place.
        gap = p.to(torch.float64, copy=True)
        if y.ndim == 1:
            gap[torch.arange(len(y), device=y.device), y] -= 1
        else:
            gap -= y
        total += _item(gap.square_().sum())
        rows += len(p)
    return total / rows


def accuracy(probs: Array, labels: Array) -> float:
    """The share of rows whose most probable class (the first of equals) is the label."""
    hits = rows = 0
    for _, hit in stream(probs, labels, None):
        hits += int(hit.sum())
        rows += len(hit)
    return hits / rows


def macro_f1(probs: Array, labels: Array) -> float:
    """The mean F1 of the classes that occur among labels or predictions."""
    right, predicted, actual = _class_counts(probs, labels)
    scores = [2 * r / (p + a) for r, p, a in zip(right, predicted, actual, strict=True) if p + a]
    return math.fsum(scores) / len(scores)


def mcc(probs: Array, labels: Array) -> float:
    """Matthews' correlation of predictions and labels (Gorodkin 2004); 0 if either is constant."""
    right, predicted, actual = _class_counts(probs, labels)
    rows = sum(actual)
    both = sum(p * a for p, a in zip(predicted, actual, strict=True))
    spread = (rows**2 - sum(p * p for p in predicted)) * (rows**2 - sum(a * a for a in actual))
    return (sum(right) * rows - both) / math.sqrt(spread) if spread else 0.0


def truth_distance(probs: Array, true_probs: Array) -> float:
    """The mean total variation distance ½ Σ |p − q| between predicted and true class probabilities.

    For data whose true probabilities are known: the error that every calibration metric only estimates.

    >>> import numpy as np
    >>> round(truth_distance(np.array([[0.9, 0.1]]), np.array([[0.7, 0.3]])), 6)
    0.2
    """
    total, rows = 0.0, 0
    if pair(probs, true_probs, soft=True)[1].ndim != 2:
        raise InputError("true_probs must be probabilities of the same shape as probs")
    for _, p, q in checked_chunks(probs, true_probs, soft=True):
        total += _item((p.double() - q.double()).abs_().sum()) / 2
        rows += len(p)
    return total / rows


def _class_counts(probs: Array, labels: Array) -> tuple[list[int], list[int], list[int]]:
    """For each class: right predictions, predictions and labels. Python integers, which cannot overflow."""
    counts: Tensor | None = None
    for _, p, y in checked_chunks(probs, labels):
        if counts is None:
            counts = torch.zeros(3, p.shape[1], dtype=torch.int64, device=p.device)
        best = first_largest(p)
        for row, classes in enumerate((y[best == y], best, y)):
            counts[row] += torch.bincount(classes, minlength=p.shape[1])
    assert counts is not None
    right, predicted, actual = counts.tolist()
    return right, predicted, actual


def _item(value: Tensor) -> float:
    return float(value.item())
