"""Label distributions: smoothing them, mixing them, and the cross-entropy to them."""

import torch
from torch import Tensor

from calmix.mixing.checking import check_range

__all__ = ["cross_entropy", "mix", "smooth"]


def smooth(targets: Tensor, amount: float) -> Tensor:
    """Return distributions with a share σ = `amount` of each class's mass spread over the *other* classes.

    A one-hot row becomes 1 − σ on the gold class and σ/(K − 1) on each other one (Park & Caragea 2022).
    """
    if amount == 0:
        return targets
    check_range("amount", amount, high=1)
    classes = targets.shape[-1]
    if classes == 1:
        return targets
    return targets * (1 - amount) + (1 - targets) * (amount / (classes - 1))


def mix(rows: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """Return λ·row + (1 − λ)·its partner's row, for each row along the first axis; λ = 1 changes no bit."""
    lam = weight.view(-1, *([1] * (rows.dim() - 1)))
    return (lam * rows + (1 - lam) * rows[partner]).to(rows.dtype)


def cross_entropy(logits: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return each row's −Σ w_k·t_k·log p_k, for distributions as targets; a class with t = 0 adds nothing."""
    weighted = targets if class_weights is None else targets * class_weights
    return -(weighted * torch.log_softmax(logits, dim=-1)).sum(-1)
