"""How well confidence ranks right answers above wrong ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calmix.calibration.checks import Array, like
from calmix.calibration.confidence import confidences

__all__ = ["RiskCoverage", "aurc", "risk_coverage"]


@dataclass(frozen=True)
class RiskCoverage:
    """The error rate among the `coverage` most confident rows, for every share 1/n, 2/n … 1."""

    coverage: Array
    risk: Array
    threshold: Array  # the confidence of the last row let in


def risk_coverage(probs: Array, labels: Array) -> RiskCoverage:
    """The error rate that remains when only the most confident rows are answered.

    Rows of equal confidence have no order: within them errors are spread evenly, as they are on average
    over all orders.
    """
    confidence, errors = _ranked(probs, labels)
    answered = torch.arange(1, len(errors) + 1, dtype=torch.float64, device=errors.device)
    return RiskCoverage(like(answered / len(errors), probs), like(errors / answered, probs), like(confidence, probs))


def aurc(probs: Array, labels: Array) -> float:
    """The area under the risk–coverage curve: the mean risk over coverages 1/n … 1 (Geifman et al. 2019).

    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> aurc(probs, np.array([0, 0, 1]))  # only the least sure one is wrong: (0 + 0 + 1/3) / 3
    0.1111111111111111
    """
    _, errors = _ranked(probs, labels)
    answered = torch.arange(1, len(errors) + 1, dtype=torch.float64, device=errors.device)
    return float((errors / answered).mean())


def _ranked(probs: Array, labels: Array) -> tuple[Tensor, Tensor]:
    """Confidence in falling order, and how many of the rows so far are wrong (expected, within ties)."""
    confidence, hit = confidences(probs, labels)
    confidence, order = confidence.sort(descending=True)
    _, group, size = torch.unique_consecutive(confidence, return_inverse=True, return_counts=True)
    wrong = torch.bincount(group, weights=(~hit[order]).double(), minlength=len(size))
    first = size.cumsum(0) - size
    within = torch.arange(1, len(order) + 1, device=order.device) - first[group]
    return confidence, (wrong.cumsum(0) - wrong)[group] + (wrong / size)[group] * within
