"""What a loss is a sum of. A term looks at a step and returns one loss per row."""

from collections.abc import Callable

import torch
from torch import Tensor

from calmix.mixing.checking import check_range
from calmix.mixing.levels import Level, Mask, Padding, check_level, check_pairs, mixed_logits
from calmix.mixing.losses import Mixes, row_losses, step_losses
from calmix.mixing.pairing import Pairing, reversed_batch, shuffled
from calmix.mixing.step import Step
from calmix.mixing.targets import mix, smooth

__all__ = ["Term", "clean", "mixed", "negative_entropy", "total"]

Term = Callable[[Step], Tensor]
"""Step → one loss per row. The loop divides their sum by the number of rows over all processes."""


def clean(*, smoothing: float = 0.0) -> Term:
    """Return cross-entropy on the unmixed batch."""
    check_range("smoothing", smoothing, high=1)

    def term(step: Step) -> Tensor:
        return step_losses(step, smoothing=smoothing)

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
    if not callable(level):
        check_level(level)
    check_pairs(padding, mask)
    check_range("alpha", alpha)
    check_range("smoothing", smoothing, high=1)

    def drawn(step: Step) -> tuple[Tensor, Tensor]:
        return pairing(step), step.beta(alpha, per_sample=per_sample)

    def term(step: Step) -> Tensor:
        where = level(step) if callable(level) else level
        if where == "head" and pairing in (shuffled, reversed_batch):
            draws = step.ahead(lambda: drawn(step))
            assert step.logits is not None  # what will be mixed is made meanwhile
            partner, weight = draws()
        else:
            partner, weight = drawn(step)
        if where == "head" and not hard:
            return step_losses(step, Mixes(partner, weight, smoothing=smoothing), clean=0)
        of_own = (weight >= 0.5).to(weight.dtype) if hard else weight
        targets = step.ahead(lambda: mix(smooth(step.targets, smoothing), partner, of_own))
        logits = mixed_logits(step, partner, weight, level=where, padding=padding, mask=mask)
        return row_losses(logits, targets(), class_weights=step.class_weights)

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
