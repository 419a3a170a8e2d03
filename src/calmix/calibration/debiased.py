"""Calibration error without the upward bias of finite bins."""

import math

import torch
from torch import Tensor

from calmix.calibration.binned import bin_index
from calmix.calibration.checks import Array, bin_count
from calmix.calibration.confidence import stream

__all__ = ["debiased_ece", "squared_ece"]


def squared_ece(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> float:
    """An unbiased estimate of the mean squared gap Σ |B|/n · (confidence − accuracy)²; may be negative.

    Plain ECE adds up absolute values, so noise in a bin never cancels: a perfectly calibrated model gets a
    positive number, larger with more bins and fewer rows. There is no unbiased estimate of an absolute
    value, but there is one of a square: the mean product dᵢ·dⱼ of the gaps d = confidence − hit of two
    *different* rows of a bin. Where a bin holds one confidence only, this is the debiased estimator of
    Bröcker (2012), Ferro & Fricker (2012) and Kumar et al. (2019); unlike theirs it stays unbiased where it
    holds several. A bin with a single row says nothing about its noise, and counts as 0.
    """
    bins = bin_count(bins)
    sums: Tensor | None = None
    for confidence, hit in stream(probs, labels, positive_class):
        if sums is None:
            sums = torch.zeros(3, bins, dtype=torch.float64, device=hit.device)
        where, gap = bin_index(confidence, bins), confidence.double() - hit.double()
        sums[0] += torch.bincount(where, minlength=bins)
        sums[1] += torch.bincount(where, weights=gap, minlength=bins)
        sums[2] += torch.bincount(where, weights=gap.square(), minlength=bins)
    assert sums is not None
    rows, gaps, squares = sums
    return float(((gaps.square() - squares) / (rows - 1).clamp(min=1)).sum() / rows.sum())


def debiased_ece(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> float:
    """`squared_ece` on the scale of ECE: the signed root √s, or −√−s where the estimate s is negative.

    It scatters around 0 for a calibrated model, where plain ECE stays above; a negative value says that
    the gaps are smaller than chance alone would make them. It estimates the root mean squared gap, which is
    at least the mean absolute one. Average `squared_ece` over runs, not this: a root is not linear.
    """
    squared = squared_ece(probs, labels, bins=bins, positive_class=positive_class)
    return math.copysign(math.sqrt(abs(squared)), squared)
