"""What needs every class's probability in bins: class-wise ECE, and the parts of the Brier score."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calmix.calibration.binned import bin_index
from calmix.calibration.checks import Array, bin_count, checked_chunks, class_index

__all__ = ["BrierParts", "brier_decomposition", "classwise_ece"]


@dataclass(frozen=True)
class BrierParts:
    """The Brier score = `reliability` − `resolution` + `uncertainty` + `residual`."""

    reliability: float  # how far the bins' mean probabilities are from their frequencies: less is better
    resolution: float  # how far the bins' frequencies are from the overall one: more is better
    uncertainty: float  # what always predicting the overall frequency would score
    residual: float  # what the spread of probabilities inside a bin adds; 0 if each bin holds one value
    brier: float


def classwise_ece(probs: Array, labels: Array, *, bins: int = 15) -> float:
    """The mean over classes of the ECE of "class k against the rest" (Kull et al. 2019)."""
    sums = _class_sums(probs, labels, bins)
    rows, probability, outcome = sums[0], sums[1], sums[2]
    return float((probability - outcome).abs().sum() / (rows.sum(1).mean() * len(rows)))


def brier_decomposition(
    probs: Array, labels: Array, *, bins: int = 15, positive_class: int | None = None
) -> BrierParts:
    """Murphy's (1973) parts of the Brier score, with each class's probability in equal-width bins.

    Summed over classes, as in `brier`; `positive_class=k` decomposes the score of class k alone. Murphy's
    three parts are exact when each bin holds one probability. Otherwise the variance within the bins and
    their covariance with the outcome are left over (Stephenson et al. 2008): `residual`, which shrinks as
    `bins` grows, while reliability grows as bins get thin.
    """
    sums = _class_sums(probs, labels, bins)
    if positive_class is not None:
        index = class_index(positive_class, sums.shape[1])
        sums = sums[:, index : index + 1]
    rows, probability, outcome, squared = sums
    total = rows[0].sum()
    held = rows.clamp(min=1)
    base = outcome.sum(1, keepdim=True) / total
    reliability = float(((probability - outcome).square() / held).sum() / total)
    resolution = float((rows * (outcome / held - base).square()).sum() / total)
    uncertainty = float((base * (1 - base)).sum())
    score = float(squared.sum() / total)
    return BrierParts(reliability, resolution, uncertainty, score - (reliability - resolution + uncertainty), score)


def _class_sums(probs: Array, labels: Array, bins: int) -> Tensor:
    """[4, K, bins]: rows, probability, outcome and (probability − outcome)², summed for each class and bin."""
    bins = bin_count(bins)
    sums: Tensor | None = None
    for _, p, y in checked_chunks(probs, labels):
        classes = p.shape[1]
        if sums is None:
            sums = torch.zeros(4, classes * bins, dtype=torch.float64, device=p.device)
        where = bin_index(p, bins).add_(torch.arange(classes, device=p.device) * bins)
        flat, size = where.flatten(), classes * bins
        value = p.to(torch.float64, copy=True)
        sums[0] += torch.bincount(flat, minlength=size)
        sums[1] += torch.bincount(flat, weights=value.flatten(), minlength=size)
        sums[2] += torch.bincount(where.gather(1, y[:, None])[:, 0], minlength=size)
        value[torch.arange(len(y), device=y.device), y] -= 1
        sums[3] += torch.bincount(flat, weights=value.square_().flatten(), minlength=size)
    assert sums is not None
    return sums.view(4, -1, bins)
