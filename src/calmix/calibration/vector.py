"""Vector scaling: a scale and a shift for each class."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calmix.calibration.checks import Array, checked_labels, checked_logits, like
from calmix.errors import InputError

__all__ = ["VectorScaling"]

# Pulls scales to 1 and shifts to 0, so slightly that it only decides what the data leaves open.
_RIDGE = 1e-6


@dataclass(frozen=True)
class VectorScaling:
    """Logits times `scale` plus `shift`, both one number a class (Guo et al. 2017).

    It can correct a class that is always over- or underestimated, so predictions may change. It needs
    enough held-out rows of every class.
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    @classmethod
    def fit(cls, logits: Array, labels: Array) -> "VectorScaling":
        """The scales and shifts with the lowest NLL of `labels` [n], or of target probabilities [n, K].

        A convex problem, solved in float64 with L-BFGS from scale 1 and shift 0: never worse than those.
        """
        z, y = checked_labels(logits, labels)
        # A caller may have switched gradients off altogether; copies made inside are free of that.
        with torch.inference_mode(False), torch.enable_grad():
            scale, shift = _minimise(z.clone(), y.clone()).tolist()
        return cls(tuple(scale), tuple(shift))

    def __call__(self, logits: Array) -> Array:
        """Calibrated probabilities in float64, as numpy for numpy and on its device for a tensor."""
        z = checked_logits(logits)
        if z.shape[1] != len(self.scale):
            raise InputError(f"logits has {z.shape[1]} classes; these scales were fitted for {len(self.scale)}")
        absent = z.isneginf()
        scale, shift = z.new_tensor(self.scale), z.new_tensor(self.shift)
        scaled = (z.masked_fill(absent, 0) * scale + shift).masked_fill_(absent, -torch.inf)
        return like(torch.softmax(scaled, 1), logits)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        return {"kind": "vector", "scale": list(self.scale), "shift": list(self.shift)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "VectorScaling":
        """The scaling that `to_json` wrote down."""
        return cls(tuple(map(float, state["scale"])), tuple(map(float, state["shift"])))


def _minimise(z: Tensor, y: Tensor) -> Tensor:
    """[2, K]: the scales and shifts of lowest NLL."""
    absent = z.isneginf()
    z = z.masked_fill(absent, 0)
    theta = torch.zeros(2, z.shape[1], dtype=torch.float64, device=z.device)
    theta[0] = 1
    theta.requires_grad_()
    optimiser = torch.optim.LBFGS(
        [theta],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        # Not -inf: a soft target of 0 times it would be NaN.
        scaled = (z * theta[0] + theta[1]).masked_fill(absent, -1e100)
        pull = (theta[0] - 1).square().sum() + theta[1].square().sum()
        value = torch.nn.functional.cross_entropy(scaled, y) + _RIDGE * pull
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return theta.detach()
