"""Saliency of a sample, and how alike two samples are by it (Park & Caragea, ACL 2022)."""

import torch
from torch import Tensor

__all__ = ["batch_partners", "cosine", "head_cosine", "residual", "saliency_map", "two_class_vectors"]


def residual(logits: Tensor, targets: Tensor) -> Tensor:
    """Return p − y [n, K], the gradient of the cross-entropy by the logits, in float64 where the device has it.

    `targets` are labels [n] or distributions [n, K]. A rounded p close to 1 would leave nothing of p − 1: the
    entry of the largest target is minus the sum of the others, which it equals.
    """
    wide = logits.detach().to(torch.float32 if logits.device.type == "mps" else torch.float64)
    if targets.ndim == 1:
        top, y = targets[:, None], torch.zeros_like(wide).scatter_(1, targets[:, None], 1.0)
    else:
        top, y = targets.argmax(1, keepdim=True), targets.to(wide.dtype)
    difference = (wide.softmax(1) - y).scatter(1, top, 0.0)
    return difference.scatter(1, top, -difference.sum(1, keepdim=True))


def saliency_map(logits: Tensor, targets: Tensor) -> Tensor:
    """Return |p − y| [n, K]: the saliency of the paper, which for softmax needs no backward pass."""
    return residual(logits, targets).abs()


def cosine(vectors: Tensor) -> Tensor:
    """Return the cosine of every pair of rows [n, n]; 0 where a row is zero."""
    unit = normalised(vectors)
    return unit @ unit.T


def head_cosine(residuals: Tensor, hidden: Tensor) -> Tensor:
    """Return the cosine of every pair of gradients by the head's weights [n, n].

    The gradient of sample i is the outer product of p_i − y_i and the head's input h_i, so the cosine is
    cos(p_i − y_i, p_j − y_j) · cos(h_i, h_j), with its sign. For two classes (or choices) it is the one to use:
    all |p − y| are then parallel, every cosine is 1, and the choice among them is rounding noise.
    """
    return cosine(residuals) * cosine(hidden.detach().to(residuals.dtype))


def two_class_vectors(residuals: Tensor, hidden: Tensor) -> Tensor:
    """Return vectors [n, d] whose cosine is that of `head_cosine` for K = 2, for searching a whole set.

    With two classes cos(p_i − y_i, p_j − y_j) is the product of two signs, which can be given to the head inputs.
    """
    if residuals.shape[1] != 2:
        raise ValueError(f"two_class_vectors is for two classes, not {residuals.shape[1]}")
    return hidden.detach() * residuals[:, :1].sign().to(hidden.dtype)


def batch_partners(similarity: Tensor, halves: Tensor, runs: int = 1) -> tuple[Tensor, Tensor]:
    """Return the most and the least similar row of the other half for every row of a batch.

    `halves` [n] are 0 or 1 (bool, or codes of `Half`); a row of neither (-1), or whose other half is not in the
    batch, is its own partner: mixing leaves it as it is. No shape depends on values. The first of equals wins.
    With `runs` batches one after the other, nobody is paired across them.
    """
    codes = halves.to(torch.int8)
    allowed = (codes[:, None] + codes[None, :]) == 1  # 0 with 1, and nothing else
    own = torch.arange(len(codes), device=codes.device)
    if runs > 1:
        run = own // (len(codes) // runs)
        allowed &= run[:, None] == run[None, :]
    # Oneself, never allowed, comes after every cosine and before all others: whoever has nobody stays alone.
    last = torch.where(own[:, None] == own[None, :], -2.0, -torch.inf)
    return torch.where(allowed, similarity, last).argmax(1), torch.where(allowed, -similarity, last).argmax(1)


def normalised(vectors: Tensor) -> Tensor:
    """Return the rows at length 1, zero rows as they are; the largest entry first, so that tiny rows survive."""
    least = torch.finfo(vectors.dtype).tiny
    scaled = vectors / torch.linalg.vector_norm(vectors, torch.inf, dim=1, keepdim=True).clamp_min(least)
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp_min(least)
    return unit
