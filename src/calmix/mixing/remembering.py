"""A memory of what a run has predicted for each of its samples, in the epochs before."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

__all__ = ["LOOKS", "OWN", "Memory"]

OWN = "own"
"""The signal that holds the mean of the run's own predictions for each sample, [samples, classes]."""

LOOKS = "looks"
"""The signal that says how many predictions that is the mean of."""


class Memory:
    """Probabilities of each sample's clean forwards, summed.

    Nothing in `update` waits for the device or depends on values for its shapes, and all tensors stay where they are:
    a step that contains it can be captured as a CUDA graph.

    Args:
        samples: how many there are.
        classes: how many there are, or the most choices.
        device: where the logits will be.
    """

    def __init__(self, samples: int, classes: int, device: torch.device) -> None:
        # Slot 0 takes what is not to be remembered; sample i has slot i + 1. The last column counts.
        self.fresh = torch.zeros(samples + 1, classes + 1, device=device)
        self.total = torch.zeros_like(self.fresh)

    @torch.no_grad()
    def update(self, logits: Tensor, rows: Tensor) -> None:
        """Remember the predictions of some samples; rows of -1 are left out."""
        seen = torch.zeros(len(rows), self.fresh.shape[1], device=logits.device)
        seen[:, : logits.shape[1]] = torch.softmax(logits.detach().float(), -1)
        seen[:, -1] = 1
        self.fresh.index_add_(0, rows + 1, seen)

    @torch.no_grad()
    def end_epoch(self, summed: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add what this epoch saw to what is known; `summed` adds it up over several processes."""
        self.total += self.fresh if summed is None else summed(self.fresh)
        self.fresh.zero_()

    @torch.no_grad()
    def signals(self) -> dict[str, Tensor]:
        """Return the mean prediction of each sample, 0 for one never seen, and how often each was."""
        sums, looks = self.total[1:, :-1], self.total[1:, -1]
        return {OWN: sums / looks.clamp_min(1)[:, None], LOOKS: looks.clone()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, as tensors to be saved."""
        return {"fresh": self.fresh[1:].clone(), "total": self.total[1:].clone()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict`; tensors stay where they are."""
        self.fresh[1:].copy_(state["fresh"])
        self.total[1:].copy_(state["total"])
