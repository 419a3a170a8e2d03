"""The mean of several predictions, and the columns of one model in the order of another's labels."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LEAST", "columns_for", "mean_logits"]

LEAST = float(np.finfo(np.float32).tiny)
"""Lower probabilities than float32 has are no knowledge, and their logarithm is no number."""


def mean_logits(each: Sequence[Tensor]) -> Tensor:
    """Return one model's logits as they are; of several, the logarithm of their mean probabilities.

    Probabilities are averaged, not logits, whose mean would depend on how each model happens to be scaled. A choice
    that a row does not have (−inf) stays impossible.
    """
    if len(each) == 1:
        return each[0] if each[0].dtype == torch.float64 else each[0].float()
    total = each[0].double().log_softmax(-1)
    for logits in each[1:]:
        total = torch.logaddexp(total, logits.double().log_softmax(-1))
    mean = (total - math.log(len(each))).clamp(min=math.log(LEAST))
    mean = torch.where(each[0].isneginf(), -torch.inf, mean)
    return mean if each[0].dtype == torch.float64 else mean.float()


def columns_for(labels: Sequence[str], theirs: Sequence[str]) -> NDArray[np.int64] | None:
    """Return where each label stands among others; None where these are not the same ones."""
    if sorted(labels) != sorted(theirs):
        return None
    where = {name: position for position, name in enumerate(theirs)}
    return np.array([where[name] for name in labels], dtype=np.int64)
