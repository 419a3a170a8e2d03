"""The losses of a batch's rows, clean and mixed at the head: on a GPU one kernel, and another for their gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calmix.mixing import fused
from calmix.mixing.step import Step
from calmix.mixing.targets import cross_entropy, mix, smooth

__all__ = ["Mixes", "row_losses", "step_losses"]


@dataclass(frozen=True, eq=False)
class Mixes:
    """Who is mixed with whom inside a batch, and what the mixes count."""

    partner: Tensor
    """The partner row of each row, of the same run: [rows], or [mixes, rows] for several of each."""
    own: Tensor
    """λ, what a mix has of the row itself, of the same shape; 1 − λ is its partner's."""
    weight: Tensor | None = None
    """What a mix counts in the loss: one number for each row, or with several mixes one for each of them; None: 1."""
    smoothing: float = 0.0
    """Label smoothing σ of the targets that are mixed."""


def step_losses(step: Step, mixes: Mixes | None = None, *, clean: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """Return `row_losses` of a step's clean logits."""
    return row_losses(
        step.logits,
        step.targets,
        mixes,
        clean=clean,
        smoothing=smoothing,
        class_weights=step.class_weights,
        runs=step.runs,
    )


def row_losses(
    logits: Tensor,
    targets: Tensor,
    mixes: Mixes | None = None,
    *,
    clean: float = 1.0,
    smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    runs: int = 1,
) -> Tensor:
    """Return `clean` times the cross-entropy of each row plus the weighted cross-entropies of its mixes.

    The head is linear: a mix of what it reads is a mix of logits. At small batches a step is as long as its kernels
    are many, and these would be dozens. What the kernels do is what `by_torch` does, which is used where they do not
    serve; they can be differentiated once.

    Args:
        logits: [rows, classes].
        targets: label distributions [rows, classes].
        mixes: of rows with rows of the batch; None mixes nothing.
        clean: weight of the unmixed rows; 0 leaves them out.
        smoothing: label smoothing σ of the unmixed rows' targets.
        class_weights: [classes].
        runs: how many runs' rows follow each other; nobody is paired across them.
    """
    told = (logits, targets, mixes, clean, smoothing, class_weights)
    if fused.serves_losses(logits, targets, runs):
        return fused.losses(*told, runs)
    return by_torch(*told)


def by_torch(
    logits: Tensor, targets: Tensor, mixes: Mixes | None, clean: float, smoothing: float, class_weights: Tensor | None
) -> Tensor:
    """Return `row_losses`, by operations of torch."""

    def plain() -> Tensor:
        losses = cross_entropy(logits, smooth(targets, smoothing), class_weights)
        return losses if clean == 1 else clean * losses

    if mixes is None:
        return plain()
    if clean == 0:
        return _mixed_by_torch(logits, targets, mixes, class_weights)
    return plain() + _mixed_by_torch(logits, targets, mixes, class_weights)


def _mixed_by_torch(logits: Tensor, targets: Tensor, mixes: Mixes, class_weights: Tensor | None) -> Tensor:
    partner, own, targets = mixes.partner, mixes.own, smooth(targets, mixes.smoothing)
    if partner.dim() == 1:
        losses = cross_entropy(mix(logits, partner, own), mix(targets, partner, own), class_weights)
        return losses if mixes.weight is None else mixes.weight * losses
    # A matrix that mixes rows does for logits and labels; its product has a gradient that is one product, too.
    rows, lam = torch.arange(len(logits), device=logits.device), own[..., None]
    mixer = torch.where(partner[..., None] == rows, 1 - lam, 0.0) + lam * (rows[:, None] == rows)
    losses = cross_entropy(mixer @ logits, mixer @ targets, class_weights)
    return losses.sum(0) if mixes.weight is None else mixes.weight @ losses
