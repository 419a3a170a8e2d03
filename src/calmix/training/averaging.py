"""Weights averaged along a run, beside those that are trained."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calmix.training.sharding import local

__all__ = ["Averaged"]


class Averaged:
    """The mean of the weights after each update, of the latest most: an exponential average.

    Until `memory` updates have been made it is the plain mean of all of them, so that nothing of where the weights
    began weighs more than any other step. Buffers are averaged too (the running statistics of normalisations).
    It is one pass over the weights for each update, without waiting for the device, and outside of captured steps.

    Args:
        models: the models that are trained, all by the same steps.
        share: over what share of the run, about, it is the mean; 0 does nothing at all.
        steps: of the whole run.
    """

    def __init__(self, models: Sequence[nn.Module], share: float, steps: int) -> None:
        self.memory, self.count = max(1, round(share * steps)), 0
        self.names, self.weights = _own_tensors(models if share > 0 else ())
        self.means = [weight.clone() for weight in self.weights]

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights in, after an update."""
        self.count += 1
        if self.means:
            torch._foreach_lerp_(self.means, self.weights, 1 / min(self.count, self.memory))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages into the models for the time being."""
        with torch.no_grad():
            kept = [weight.clone() for weight in self.weights]
            _copy(self.weights, self.means)
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(self.weights, kept)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors, to be saved."""
        return {**dict(zip(self.names, self.means, strict=True)), "count": torch.tensor(self.count)}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved tensors."""
        self.count = int(tensors["count"])
        for name, mean in zip(self.names, self.means, strict=True):
            mean.copy_(tensors[name])


def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, of)


def _own_tensors(models: Sequence[nn.Module]) -> tuple[list[str], list[Tensor]]:
    """Return the names and tensors of everything that changes in training, tied weights once."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for place, model in enumerate(models):
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.is_floating_point() and id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{place}.{name}"] = local(tensor)
    return list(found), list(found.values())
