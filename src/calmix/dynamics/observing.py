"""One batch of logits → what is kept of each row."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Observation", "observe"]


class Observation(NamedTuple):
    """What one forward says about each row of a batch; every tensor is [rows], and float64 but for `valid`."""

    valid: Tensor
    """Whether the row has a label and finite numbers: others are not recorded."""
    label: Tensor
    margin: Tensor
    """Gold logit minus the largest other one; NaN where there is no other class."""
    gold: Tensor
    """Probability of the gold class."""
    loss: Tensor
    """Cross-entropy, minus its logarithm."""
    right: Tensor
    """1 if the gold class is the prediction, else 0; of equal logits the first class wins."""
    predicted: Tensor
    rival: Tensor
    """The most probable class other than the gold one; -1 where there is none."""
    rival_probability: Tensor
    """Its probability; 0 where there is none."""


def observe(logits: Tensor, labels: Tensor) -> Observation:
    """Return margins, probabilities and predictions of logits [rows, classes].

    A logit of -inf is a class that does not exist for that row (the padding of multiple choice): it is never
    a rival. A row is not valid when its label is no class, when its gold logit is not finite, or when any of
    its logits is NaN or +inf.
    """
    scores = logits.double()
    columns = labels.clamp(0, logits.shape[1] - 1)[:, None]
    logs = scores.log_softmax(1)
    gold_logit, gold_log = scores.gather(1, columns)[:, 0], logs.gather(1, columns)[:, 0]
    rival_logit, rival = scores.scatter(1, columns, -torch.inf).max(1)
    alone, lead = rival_logit == -torch.inf, gold_logit - rival_logit
    predicted = scores.argmax(1)
    return Observation(
        valid=(labels == columns[:, 0]) & (gold_log > -torch.inf),  # never true of NaN
        label=labels.double(),
        margin=torch.where(alone, torch.nan, lead),
        gold=gold_log.exp(),
        loss=-gold_log,
        right=(predicted == labels).double(),
        predicted=predicted.double(),
        rival=torch.where(alone, -1.0, rival.double()),
        rival_probability=(gold_log - lead).exp(),
    )
