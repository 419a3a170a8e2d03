"""What a loss is a sum of. A term looks at a step and returns one loss per row."""

from collections.abc import Callable

import torch
from torch import Tensor

from calmix.mixing.checking import check_range
from calmix.mixing.levels import Level, Mask, Padding, mixed_logits
from calmix.mixing.pairing import Pairing, shuffled
from calmix.mixing.step import Step
from calmix.mixing.targets import cross_entropy, mix, smooth

__all__ = ["Term", "clean", "mixed", "negative_entropy", "total"]

Term = Callable[[Step], Tensor]
"""Step → one loss per row. The loop divides their sum by the number of rows over all processes."""


def clean(*, smoothing: float = 0.0) -> Term:
    """Return cross-entropy on the unmixed batch."""
    check_range("smoothing", smoothing, high=1)

    def term(step: Step) -> Tensor:
        return cross_entropy(step.logits, smooth(step.targets, smoothing), step.class_weights)

    return term


def mixed(
    level: Level | Callable[[Step], Level],
    *,
    alpha: float,
    pairing: Pairing = shuffled,
    per_sample: bool = False,
    smoothing: float = 0.0,
    hard: bool = False,
    padding: Padding = "sep",
    mask: Mask = "union",
) -> Term:
    """Return cross-entropy of mixed samples to their mixed labels (`hard`: to the nearer sample's label)."""
    check_range("alpha", alpha)
    check_range("smoothing", smoothing, high=1)

    def term(step: Step) -> Tensor:
        partner = pairing(step)
        weight = step.beta(alpha, per_sample=per_sample)
        where = level(step) if callable(level) else level
        logits = mixed_logits(step, partner, weight, level=where, padding=padding, mask=mask)
        share = (weight >= 0.5).to(weight.dtype) if hard else weight
        targets = mix(smooth(step.targets, smoothing), partner, share)
        return cross_entropy(logits, targets, step.class_weights)

    return term


def negative_entropy() -> Term:
    """Return −H(p) of the clean prediction: adding it to a loss rewards unsure predictions."""

    def term(step: Step) -> Tensor:
        log_p = torch.log_softmax(step.logits, dim=-1)
        return (log_p.exp() * log_p).sum(-1)

    return term


def total(*weighted: tuple[float, Term]) -> Term:
    """Return the weighted sum of several terms."""

    def term(step: Step) -> Tensor:
        return torch.stack([weight * part(step) for weight, part in weighted]).sum(0)

    return term
