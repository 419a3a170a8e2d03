"""A temperature written into the weights, so that the checkpoint is calibrated wherever it is loaded."""

import math

import torch
from torch import nn

from calmix.errors import InputError
from calmix.models.anatomy import head_of

__all__ = ["fold", "folded_temperature"]

_KEY = "calmix_temperature"


def fold(model: nn.Module, temperature: float) -> None:
    """Divide the head's weights and bias by `temperature`, in place, in float32.

    Softmax of the new logits is softmax of the old ones at that temperature. The config records the
    temperature in total: folding 2 and then 3 leaves 6 there, and `fold(model, 1 / folded_temperature(model))`
    takes it all out again. A half-precision head is made float32 first: rounding W/T to bf16 can change which
    class wins.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise InputError(f"a temperature must be a positive number, not {temperature}")
    head = head_of(model)
    head.float()
    with torch.no_grad():
        head.weight.div_(temperature)
        if head.bias is not None:
            head.bias.div_(temperature)
    setattr(model.config, _KEY, folded_temperature(model) * temperature)


def folded_temperature(model: nn.Module) -> float:
    """Return the temperature already inside the head's weights; 1.0 if none was ever folded."""
    return float(getattr(model.config, _KEY, 1.0))
