"""Who is mixed with whom inside a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from calmix.mixing.step import Step

__all__ = ["Pairing", "reversed_batch", "shuffled"]

Pairing = Callable[[Step], Tensor]
"""Step → the partner row of each row."""


def shuffled(step: Step) -> Tensor:
    """Return a random permutation: the partner of plain mixup, which may be oneself."""
    return step.permutation()


def reversed_batch(step: Step) -> Tensor:
    """Return the batch back to front: no draw, and only the middle row of an odd batch is its own partner."""
    return torch.arange(len(step) - 1, -1, -1, device=step.device)
