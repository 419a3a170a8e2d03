"""Calibration error over bins that hold equally many rows."""

import torch

from calmix.calibration.checks import Array, bin_count
from calmix.calibration.confidence import confidences

__all__ = ["adaptive_ece"]


def adaptive_ece(probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None) -> float:
    """Σ |B|/n · |confidence − accuracy| over equal-mass bins (Nguyen & O'Connor 2015).

    The upper edge of bin m is the ⌈n·m/M⌉-th smallest confidence. Equal confidences share a bin, whatever
    the order of the rows, so bins are as equal as ties allow.
    """
    bins = bin_count(bins)
    confidence, hit = confidences(probs, labels, positive_class)
    confidence, order = confidence.sort()
    rows = len(confidence)
    last = -(-torch.arange(1, bins, device=order.device) * rows // bins) - 1
    where = torch.searchsorted(confidence[last.clamp_(min=0)], confidence)
    gaps = torch.bincount(where, weights=confidence - hit[order].double(), minlength=bins)
    return float(gaps.abs().sum() / rows)
