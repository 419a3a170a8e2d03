"""Recalibrators: `fitted = Kind.fit(logits, labels)`, then `fitted(logits)` → probabilities."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.calibration import (
        Histogram,
        Isotonic,
        Recalibrator,
        Temperature,
        VectorScaling,
        from_json,
    )
    from calmix.models import fold, folded_temperature

__all__ = [
    "Histogram",
    "Isotonic",
    "Recalibrator",
    "Temperature",
    "VectorScaling",
    "fold",
    "folded_temperature",
    "from_json",
]


# Folding edits a model, so it lives with the models.
_OF_MODELS = ("fold", "folded_temperature")


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("calmix.models" if name in _OF_MODELS else "calmix.calibration"), name)
    raise AttributeError(f"module 'calmix.recalibration' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
