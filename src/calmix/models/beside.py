"""What travels beside a checkpoint because weights cannot hold it: `calmix.json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.calibration import ConformalSets, Recalibrator, SelectiveThreshold, Temperature, from_json
from calmix.data import write_json
from calmix.errors import InputError
from calmix.models.dropping import Dropout

__all__ = ["Beside", "read_beside", "write_beside"]

_NAME = "calmix.json"
# The tensors of 0.1.0's default, which had a temperature for each input.
_DISCONTINUED = "calmix.safetensors"


@dataclass(frozen=True)
class Beside:
    """A recalibrator that is not in the weights, a threshold to answer above, prediction sets, and MC-dropout."""

    recalibrator: Recalibrator | None = None
    threshold: SelectiveThreshold | None = None
    sets: ConformalSets | None = None
    dropout: Dropout | None = None

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what the recalibrator makes of logits [n, K]; their softmax, where there is none."""
        return np.asarray((self.recalibrator or Temperature(1.0))(logits))

    def rule(self) -> SelectiveThreshold:
        """Return the threshold to abstain by; refuse where there is none."""
        if self.threshold is None:
            raise InputError(
                "there is no threshold to abstain by: train or calibrate the model with a guarantee; an ensemble, and "
                "MC-dropout, take one of their own"
            )
        return self.threshold

    def inside(self, probs: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which classes are possible in each row [n, K]; refuse where there are no prediction sets."""
        if self.sets is None:
            raise InputError(
                "there are no prediction sets: train or calibrate the model with a guarantee; an ensemble, and "
                "MC-dropout, take some of their own"
            )
        # A choice that is not there has probability 0 exactly, and is never possible.
        return np.asarray(self.sets(probs)) & (probs > 0)


def write_beside(folder: Path, beside: Beside) -> None:
    """Write what there is; a folder without any of it has no file."""
    state = {name: value.to_json() for name, value in vars(beside).items() if value is not None}
    if state:
        write_json(folder / _NAME, state)
    else:
        (folder / _NAME).unlink(missing_ok=True)


def read_beside(folder: Path) -> Beside:
    """Return what is beside a checkpoint; nothing, for one that calmix did not touch."""
    file = folder / _NAME
    if (folder / _DISCONTINUED).is_file():
        raise _discontinued(folder)
    if not file.is_file():
        return Beside()
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError("not an object")
        found = Beside(
            recalibrator=from_json(state["recalibrator"]) if "recalibrator" in state else None,
            threshold=SelectiveThreshold.from_json(state["threshold"]) if "threshold" in state else None,
            sets=ConformalSets.from_json(state["sets"]) if "sets" in state else None,
            dropout=Dropout.from_json(state["dropout"]) if "dropout" in state else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{file}: is damaged ({error}); calibrate the model again") from None
    if "cooling" in state:
        raise _discontinued(folder)
    return found


def _discontinued(folder: Path) -> InputError:
    return InputError(
        f"{folder}: was made by the default of calmix 0.1.0, which had a temperature for each input and is gone: "
        f"delete {_NAME} and {_DISCONTINUED} there and calibrate the model again, or use 0.1.0 (commit cda59c8)"
    )
