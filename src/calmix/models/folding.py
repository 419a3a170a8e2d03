"""A temperature written into the weights, so that the checkpoint is calibrated wherever it is loaded."""

import math
from typing import Any

import torch
from torch import nn

from calmix.errors import InputError
from calmix.models.anatomy import head_of

__all__ = ["fold", "folded_temperature", "forget_temperature"]

_KEY = "calmix_temperature"


def fold(model: nn.Module, temperature: float) -> None:
    """Divide the head's weights and bias by `temperature`, in place.

    Softmax of the new logits is softmax of the old ones at that temperature. The config records the
    temperature in total: folding 2 and then 3 leaves 6 there, and `fold(model, 1 / folded_temperature(model))`
    takes it all out again.

    A half-precision model is made float32 first, all of it: rounding W/T to bf16 can change which class wins,
    a float32 head cannot read a bf16 body's features, and a checkpoint is loaded in the one precision its
    config names. The body's values do not change by that.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise InputError(f"a temperature must be a positive number, not {temperature}")
    head = head_of(model)
    if head.weight.dtype in (torch.bfloat16, torch.float16):
        model.float()
    with torch.no_grad():
        head.weight.div_(temperature)
        if head.bias is not None:
            head.bias.div_(temperature)
    setattr(model.config, _KEY, folded_temperature(model) * temperature)


def folded_temperature(model: nn.Module) -> float:
    """Return the temperature already inside the head's weights; 1.0 if none was ever folded."""
    return float(getattr(model.config, _KEY, 1.0))


def forget_temperature(config: Any) -> None:
    """Take the record of a folded temperature out of a config: its head is about to be trained anew."""
    if hasattr(config, _KEY):
        delattr(config, _KEY)
