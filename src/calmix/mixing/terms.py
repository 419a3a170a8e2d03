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
    share: float = 1.0,
    entropy: float = 0.0,
) -> Term:
    """Return cross-entropy of mixed samples to their mixed labels (`hard`: to the nearer sample's label).

    A `share` below 1 leaves the other rows of each batch unmixed: what the model thinks of them is free to record.
    `entropy` is the weight of the prediction's entropy, which is taken off the loss.
    """
    if not callable(level):
        check_level(level)
    check_pairs(padding, mask)
    check_range("alpha", alpha)
    check_range("smoothing", smoothing, high=1)
    check_range("share", share, high=1)
    check_range("entropy", entropy)

    def drawn(step: Step) -> tuple[Tensor, Tensor | None, Tensor]:
        partner, unmixed = pairing(step), None
        if share < 1:
            # Mixed with itself, whatever λ is, a text stays as it is, and so does its mask.
            unmixed = ~step.drawn(share)
            partner = torch.where(unmixed, torch.arange(len(step), device=step.device), partner)
        return partner, unmixed, step.beta(alpha, per_sample=per_sample)

    def term(step: Step) -> Tensor:
        where = level(step) if callable(level) else level
        if where == "head" and pairing in (shuffled, reversed_batch):
            draws = step.ahead(lambda: drawn(step))
            assert step.logits is not None  # what will be mixed is made meanwhile
            partner, unmixed, weight = draws()
        else:
            partner, unmixed, weight = drawn(step)
        if where == "head" and unmixed is None and not (hard or entropy):
            return step_losses(step, Mixes(partner, weight, smoothing=smoothing), clean=0)
        of_own = (weight >= 0.5).to(weight.dtype) if hard else weight
        targets = step.ahead(lambda: mix(smooth(step.targets, smoothing), partner, of_own))
        logits = mixed_logits(step, partner, weight, level=where, padding=padding, mask=mask)
        if unmixed is not None:
            step.note(logits, unmixed)
        losses = row_losses(logits, targets(), class_weights=step.class_weights)
        return losses + entropy * _negative_entropy(logits) if entropy else losses

    return term


def negative_entropy() -> Term:
    """Return −H(p) of the clean prediction: adding it to a loss rewards unsure predictions."""

    return lambda step: _negative_entropy(step.logits)


def _negative_entropy(logits: Tensor) -> Tensor:
    log_p = torch.log_softmax(logits, dim=-1)
    return (log_p.exp() * log_p).sum(-1)


def total(*weighted: tuple[float, Term]) -> Term:
    """Return the weighted sum of several terms."""

    def term(step: Step) -> Tensor:
        return torch.stack([weight * part(step) for weight, part in weighted]).sum(0)

    return term
