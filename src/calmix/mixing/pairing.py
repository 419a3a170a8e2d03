"""Who is mixed with whom inside a batch."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from calmix.dynamics import batch_partners, cosine, head_cosine, residual, saliency_map
from calmix.mixing import fused
from calmix.mixing.step import Step

__all__ = ["Pairing", "Similarity", "across", "by_saliency", "head_gradient", "reversed_batch", "shuffled", "sides"]

Pairing = Callable[[Step], Tensor]
"""Step → the partner row of each row."""

Similarity = Literal["auto", "logits", "head"]
"""What two samples are compared by: |p − y| over the logits, or the gradient by the head's weights. `auto` takes
the logits, but the head for two classes, where all |p − y| are parallel."""


def shuffled(step: Step) -> Tensor:
    """Return a random permutation: the partner of plain mixup, which may be oneself."""
    return step.permutation()


def reversed_batch(step: Step) -> Tensor:
    """Return the batch back to front: no draw, and only the middle row of an odd batch is its own partner."""
    back = torch.arange(step.size - 1, -1, -1, device=step.device)
    return (back + step.offsets[:, None]).flatten()


def sides(step: Step, signal: str) -> Tensor:
    """Return the side (0, 1, or -1 for neither) of each row; halves drawn at random where there is no signal."""
    if signal in step.signals:
        return step.signal(signal).long()
    return (step.permutation() % step.size < step.size // 2).long()


def across(step: Step, side: Tensor) -> Tensor:
    """Return a partner on the other side for each row: one each, in random order, as far as they go.

    Where the sides differ in number, those of the smaller one are taken again. A row of neither side, or
    without anyone on the other, is its own partner. No shape depends on values.
    """
    runs, n = step.runs, step.size
    # Side 0 first, then side 1, then the others, each in random order; one line for each run.
    group = torch.where(side < 0, 2, side).view(runs, n)
    shuffle = step.permutation().view(runs, n) - step.offsets[:, None]
    order = shuffle.gather(1, group.gather(1, shuffle).argsort(dim=1, stable=True))
    sizes = torch.stack([(group == 0).sum(1), (group == 1).sum(1)], 1)
    here = torch.arange(n, device=step.device).expand(runs, n)
    place = torch.empty_like(order).scatter_(1, order, here)
    is_second = (group == 1).long()
    rank = place - is_second * sizes[:, :1]
    others = sizes.gather(1, 1 - is_second)
    partner = order.gather(1, ((1 - is_second) * sizes[:, :1] + rank % others.clamp_min(1)).clamp_max(n - 1))
    alone = (group == 2) | (others == 0)
    return (torch.where(alone, here, partner) + step.offsets[:, None]).flatten()


def by_saliency(step: Step, side: Tensor, similarity: Similarity = "auto") -> Tensor:
    """Return the most similar and the most dissimilar row of the other side for each row (Park & Caragea 2022).

    Both as one tensor, [2, rows].
    """
    logits, targets = step.logits, step.targets
    by_logits = similarity == "logits" or (similarity == "auto" and targets.shape[-1] > 2)
    if step.has_choices and not by_logits:
        return torch.stack(batch_partners(cosine(head_gradient(step)), side, step.runs))
    hidden = None if by_logits else step.hidden
    if fused.serves_partners(logits, targets, step.runs, hidden):
        return fused.partners(logits, targets, side, step.runs, hidden)
    alike = cosine(saliency_map(logits, targets)) if hidden is None else head_cosine(residual(logits, targets), hidden)
    return torch.stack(batch_partners(alike, side, step.runs))


def head_gradient(step: Step) -> Tensor:
    """Return the gradient of each row's loss by the head's weights [rows, features], for multiple choice.

    One weight vector scores all choices: its gradient is the sum over a row's choices.
    """
    gap = residual(step.logits, step.targets)
    hidden = step.hidden.detach().to(gap.dtype)
    return (gap[..., None] * hidden.view(*gap.shape, -1)).sum(1)
