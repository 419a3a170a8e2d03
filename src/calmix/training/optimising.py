"""The optimiser, the learning rate over time, and keeping a bad gradient away from the weights."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calmix.errors import InputError

__all__ = ["Schedule", "adamw", "check_hyper", "learning_rate", "set_learning_rate", "step_unless_bad"]

Schedule = Literal["linear", "constant"]


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW over the model's parameters; biases and norms are not decayed."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    cuda = parameters[0].is_cuda
    # The fused kernel is the one that can skip an update on the device: see `step_unless_bad`. On a GPU the
    # learning rate is a tensor, so that a captured update reads the one of its step.
    rate = torch.tensor(lr, device=parameters[0].device) if cuda else lr
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, fused=True, capturable=cuda)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next update, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def learning_rate(step: int, *, steps: int, peak: float, warmup: float, schedule: Schedule) -> float:
    """Return the learning rate of step 0 … steps−1: up over the share `warmup`, then down to 0 or constant."""
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    if schedule == "constant":
        return peak
    return peak * (steps - step) / max(1, steps - rising)


def step_unless_bad(optimizer: torch.optim.Optimizer, norm: Tensor) -> Tensor:
    """Update the weights unless the gradient norm is not finite; return 1.0 if it was not, without waiting.

    The decision is taken by the update kernel itself, from a tensor on the device, as mixed-precision scaling
    does it: the host learns of it later.
    """
    bad = (~torch.isfinite(norm)).float()
    inner: Any = optimizer
    inner.found_inf = bad
    inner.grad_scale = None
    optimizer.step()
    return bad


_AT_LEAST = {"epochs": 1, "batch_size": 1, "accumulate": 1, "max_length": 2, "bins": 1, "patience": 0, "seed": 0}
_BETWEEN = {
    "lr": (0.0, 1.0),
    "weight_decay": (0.0, 1.0),
    "warmup": (0.0, 1.0),
    "clip": (0.0, math.inf),
    "dev_fraction": (0.0, 1.0),
    "guarantee": (0.0, 1.0),
}


def check_hyper(values: Mapping[str, Any]) -> None:
    """Refuse numbers that cannot be meant."""
    for name, value in values.items():
        if value is None:
            continue
        option = "--" + name.replace("_", "-")
        if name in _AT_LEAST and not value >= _AT_LEAST[name]:
            raise InputError(f"{option} must be at least {_AT_LEAST[name]}, not {value}")
        if name in _BETWEEN:
            low, high = _BETWEEN[name]
            if not (math.isfinite(value) and low <= value <= high):
                raise InputError(f"{option} must be between {low:g} and {high:g}, not {value}")
