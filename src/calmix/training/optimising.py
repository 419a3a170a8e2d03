"""The optimiser, the learning rate over time, and keeping a bad gradient away from the weights."""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from calmix.errors import InputError
from calmix.models import Augment, HeadStart, Pooling
from calmix.training.selecting import Selection

__all__ = [
    "OptimizerName",
    "Schedule",
    "adamw",
    "check_hyper",
    "gradient_norms",
    "lay_out_gradients",
    "learning_rate",
    "optimizer_for",
    "set_learning_rate",
    "sgd",
    "update_unless_bad",
]

Schedule = Literal["linear", "constant", "steps"]
OptimizerName = Literal["adamw", "sgd"]

# Thulasidasan et al. 2019: halved after 2, 60, 120 and 160 of 200 epochs.
_HALVED = (0.01, 0.3, 0.6, 0.8)


def optimizer_for(
    name: OptimizerName, parameters: Iterable[Tensor], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimiser of this name."""
    return (sgd if name == "sgd" else adamw)(parameters, lr=lr, weight_decay=weight_decay)


def adamw(parameters: Iterable[Tensor], *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW over parameters; biases and norms are not decayed."""
    parameters = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    cuda = parameters[0].is_cuda
    # The fused kernel is the one that can skip an update on the device: see `update_unless_bad`. On a GPU the
    # learning rate is a tensor, so that a captured update reads the one of its step.
    rate = torch.tensor(lr, device=parameters[0].device) if cuda else lr
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, fused=True, capturable=cuda)


def sgd(parameters: Iterable[Tensor], *, lr: float, weight_decay: float, momentum: float = 0.9) -> torch.optim.SGD:
    """Return stochastic gradient descent with Nesterov momentum; everything is decayed, as image networks have it."""
    parameters = [p for p in parameters if p.requires_grad]
    cuda = parameters[0].is_cuda
    rate = torch.tensor(lr, device=parameters[0].device) if cuda else lr
    optimizer = torch.optim.SGD(
        parameters, lr=rate, momentum=momentum, nesterov=True, weight_decay=weight_decay, fused=True
    )
    for parameter in parameters:
        # The same as none before the first step; but a first step that is skipped would leave it undefined.
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], lr: float) -> None:
    """Set the learning rate of the next update, in place where it is a tensor."""
    rates = []
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if isinstance(group["lr"], Tensor):
            rates.append(group["lr"])
        else:
            group["lr"] = lr
    # One kernel for the first and one for all others, not one for each.
    for rate in rates[:1]:
        rate.fill_(lr)
    if len(rates) > 1:
        torch._foreach_copy_(rates[1:], [rates[0]] * (len(rates) - 1))


def learning_rate(step: float, *, steps: int, peak: float, warmup: float, schedule: Schedule) -> float:
    """Return the learning rate of step 0 … steps−1: up over the share `warmup`, then as the schedule says.

    `linear` falls to 0; `steps` is halved after 1, 30, 60 and 80 % of all steps.
    """
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    if schedule == "constant":
        return peak
    if schedule == "steps":
        return peak * 0.5 ** sum(step >= share * steps for share in _HALVED)
    # Never below 0, should a sampling make later epochs longer than the first.
    return peak * max(0, steps - step) / max(1, steps - rising)


def lay_out_gradients(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Give every gradient the layout of its weight, which fused kernels ask for, where convolutions made another."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.stride() != p.stride():
                    p.grad = torch.empty_like(p).copy_(p.grad)


def gradient_norms(optimizers: Sequence[torch.optim.Optimizer]) -> Tensor:
    """Return the norm of all gradients of each optimiser's parameters together: [optimisers]."""
    gradients = [p.grad for o in optimizers for group in o.param_groups for p in group["params"] if p.grad is not None]
    # Two rounds as in `get_total_norm`, but one for all.
    each = torch.stack(torch._foreach_norm(gradients)).view(len(optimizers), -1)
    norms: Tensor = torch.linalg.vector_norm(each, dim=1)
    return norms


def update_unless_bad(optimizers: Sequence[torch.optim.Optimizer], norms: Tensor, *, clip: float) -> Tensor:
    """Update weights from gradients clipped to norm `clip`; return 1.0 where a norm was not finite, without waiting.

    No weight of such a run is touched. The decision is taken by the update kernel itself, from a tensor on the
    device, as mixed-precision scaling does it, and so is the clipping: the host learns of it later.
    """
    bad = (~torch.isfinite(norms)).float()
    too_long = (norms / clip).clamp_min(1.0)
    for run, optimizer in enumerate(optimizers):
        inner: Any = optimizer
        inner.found_inf, inner.grad_scale = bad[run], too_long[run]
        optimizer.step()
    return bad


_WHOLE = {
    "epochs": 0,
    "batch_size": 1,
    "accumulate": 1,
    "max_length": 2,
    "bins": 1,
    "patience": 0,
    "folds": 0,
    "seed": 0,
    "checkpoint_epochs": 0,
    "image_size": 1,
}
_BETWEEN = {
    "lr": (0.0, 1.0),
    "weight_decay": (0.0, 1.0),
    "warmup": (0.0, 1.0),
    "clip": (0.0, math.inf),
    "checkpoint_minutes": (0.0, math.inf),
}
_INSIDE = {"dev_fraction": (0.0, 1.0), "guarantee": (0.0, 1.0)}
_ONE_OF = {
    "schedule": get_args(Schedule),
    "optimizer": get_args(OptimizerName),
    "augment": get_args(Augment),
    "select": get_args(Selection),
    "precision": ("auto", "fp32", "bf16"),
    "record": ("training", "evaluation"),
    "head": get_args(HeadStart),
    "pooling": get_args(Pooling),
}


def check_hyper(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as plain Python numbers; refuse what cannot be meant."""
    return {name: None if value is None else _checked(name, value) for name, value in values.items()}


def _checked(name: str, value: Any) -> Any:
    option = "--" + name.replace("_", "-")
    if name in _ONE_OF:
        if value not in _ONE_OF[name]:
            raise InputError(f"{option} must be one of {', '.join(_ONE_OF[name])}, not {value!r}")
        return value
    if name in _WHOLE:
        try:
            whole = index(value)
        except TypeError:
            raise InputError(f"{option} must be a whole number, not {value!r}") from None
        if not _WHOLE[name] <= whole < 2**63:
            raise InputError(f"{option} must be at least {_WHOLE[name]}, not {value}")
        return whole
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{option} must be a number, not {value!r}") from None
    if name in _INSIDE:
        low, high = _INSIDE[name]
        if not low < number < high:
            percent = f"; for {number:g} %, give {number / 100:g}" if 1 < number < 100 else ""
            raise InputError(f"{option} must lie between {low:g} and {high:g}, and be neither, not {value}{percent}")
        return number
    low, high = _BETWEEN[name]
    if not (math.isfinite(number) and low <= number <= high):
        limits = f"{low:g} or above" if high == math.inf else f"between {low:g} and {high:g}"
        raise InputError(f"{option} must be {limits}, not {value}")
    return number
