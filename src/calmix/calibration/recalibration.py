"""Recalibrators: values fitted on held-out logits and labels, callable on logits, kept as JSON.

Every one is `fitted = Kind.fit(logits, labels)`, then `fitted(logits)` → probabilities.
"""

from typing import Any, Protocol

from calmix.calibration.checks import Array
from calmix.calibration.onevsrest import Histogram, Isotonic
from calmix.calibration.temperature import Temperature
from calmix.calibration.vector import VectorScaling
from calmix.errors import InputError

__all__ = ["Histogram", "Isotonic", "Recalibrator", "Temperature", "VectorScaling", "from_json"]


class Recalibrator(Protocol):
    """What every fitted recalibrator can do."""

    def __call__(self, logits: Array) -> Array:
        """Calibrated probabilities of `logits` [n, K]."""

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""


def from_json(state: dict[str, Any]) -> Recalibrator:
    """The recalibrator that `to_json` wrote down, whichever kind it is."""
    match state.get("kind"):
        case "temperature":
            return Temperature.from_json(state)
        case "vector":
            return VectorScaling.from_json(state)
        case "isotonic":
            return Isotonic.from_json(state)
        case "histogram":
            return Histogram.from_json(state)
    raise InputError(f"kind is {state.get('kind')!r}; it must be temperature, vector, isotonic or histogram")
