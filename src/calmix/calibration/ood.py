"""How well a score separates data like the training data from other data.

Scores are larger for data that looks familiar: a confidence, a negative entropy, a log-likelihood.
"""

from statistics import NormalDist
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import Array, checked_logits, checked_probs, tensor
from calmix.calibration.resampling import Interval
from calmix.errors import InputError

__all__ = ["familiarity", "fpr95", "ood_aupr", "ood_auroc", "ood_auroc_interval"]


def familiarity(probs: Array, logits: Array | None = None) -> dict[str, NDArray[np.float64]]:
    """Return the usual scores of rows, each larger for data that looks familiar.

    `max_probability` (Hendrycks & Gimpel 2017), `negative_entropy`, `margin` (between the two largest probabilities)
    and, of logits, `negative_energy` = log Σ exp(z) (Liu et al. 2020). Choices that a row does not have are
    probabilities of 0 and logits of −inf.
    """
    p = torch.cat([rows.to(torch.float64, copy=True) for rows in checked_probs(probs)])
    top = p.topk(2, dim=1).values
    found = {
        "max_probability": top[:, 0],
        "negative_entropy": torch.xlogy(p, p).sum(1),
        "margin": top[:, 0] - top[:, 1],
    }
    if logits is not None:
        z = checked_logits(logits)
        if z.shape != p.shape:
            raise InputError(f"logits has shape {tuple(z.shape)} and probs {tuple(p.shape)}; they must be alike")
        found["negative_energy"] = z.logsumexp(1)
    return {name: score.cpu().numpy() for name, score in found.items()}


def ood_auroc(scores_in: Array, scores_out: Array) -> float:
    """The chance that a row from inside scores above one from outside; ties count one half.

    >>> import numpy as np
    >>> ood_auroc(np.array([0.9, 0.8, 0.5]), np.array([0.5, 0.2]))
    0.9166666666666666
    """
    inside, outside = _scores(scores_in, scores_out)
    ranked = outside.sort().values
    below = torch.searchsorted(ranked, inside)
    not_above = torch.searchsorted(ranked, inside, right=True)
    # Integers until the end: exact whatever the number of pairs, up to 2⁶³.
    return int((below + not_above).sum()) / (2 * len(inside) * len(outside))


def ood_auroc_interval(scores_in: Array, scores_out: Array, *, level: float = 0.95) -> Interval:
    """The AUROC with its interval after DeLong et al. (1988), which needs no resampling; never outside 0 … 1."""
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must be between 0 and 1")
    inside, outside = _scores(scores_in, scores_out)
    variance = 0.0
    for mine, other in ((inside, outside), (-outside, -inside)):
        ranked = other.sort().values
        won = torch.searchsorted(ranked, mine) + torch.searchsorted(ranked, mine, right=True)
        shares = won.double() / (2 * len(other))
        variance += float(shares.var()) / len(mine) if len(mine) > 1 else 0.25
    estimate = ood_auroc(inside, outside)
    half = NormalDist().inv_cdf((1 + level) / 2) * variance**0.5
    return Interval(estimate, max(0.0, estimate - half), min(1.0, estimate + half), level)


def ood_aupr(scores_in: Array, scores_out: Array, *, positive: Literal["in", "out"] = "out") -> float:
    """The average precision in finding rows from outside (or inside): Σ precision · step in recall.

    Unlike AUROC it depends on how many of each there are.
    """
    inside, outside = _scores(scores_in, scores_out)
    if positive == "out":
        inside, outside = -outside, -inside
    elif positive != "in":
        raise InputError(f"positive is {positive!r}; it must be 'in' or 'out'")
    thresholds, found = torch.unique(inside, return_counts=True)
    other = outside.sort().values
    kept = found.flip(0).cumsum(0).flip(0).double()
    mistaken = len(other) - torch.searchsorted(other, thresholds)
    return float((found * (kept / (kept + mistaken))).sum() / len(inside))


def fpr95(scores_in: Array, scores_out: Array) -> float:
    """The share of outside rows let in by the highest threshold that lets in 95 % of the inside ones."""
    inside, outside = _scores(scores_in, scores_out)
    rows = len(inside)
    threshold = inside.sort(descending=True).values[-(-95 * rows // 100) - 1]
    return int((outside >= threshold).sum()) / len(outside)


def _scores(scores_in: Array, scores_out: Array) -> tuple[Tensor, Tensor]:
    both = []
    for name, values in (("scores_in", scores_in), ("scores_out", scores_out)):
        scores = tensor(values, name)
        if scores.ndim != 1 or len(scores) == 0:
            raise InputError(f"{name} has shape {tuple(scores.shape)}; it must be [rows], with at least one")
        missing = scores.isnan()
        if bool(missing.any()):
            raise InputError(f"{name}[{int(missing.nonzero()[0, 0])}] is NaN")
        both.append(scores.double().contiguous())
    return both[0], both[1].to(both[0].device)
