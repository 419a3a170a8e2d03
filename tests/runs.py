"""What tests of whole runs share: ways to die, and what to compare of two of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from calmix.dynamics import Dynamics
from calmix.training import Progress

MEASURES = ("aum", "confidence", "variability", "correctness", "forgetting", "loss", "last_loss", "rival_confidence")
GUIDED = ("tdmixup", "informed-mixup", "aum-saliency")


class Killed(Exception):
    pass


def dying_at(step: int) -> Callable[[Progress], None]:
    def die(progress: Progress) -> None:
        if progress.step >= step:
            raise Killed

    return die


def recorded(folder: Path) -> Dynamics:
    return Dynamics.load(folder / "datamap.parquet")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert all(torch.equal(a[name], b[name]) for name in a)


def assert_same_dynamics(one: Dynamics, other: Dynamics, **near: float) -> None:
    assert one.ids == other.ids
    assert one.epochs == other.epochs
    assert one.observations.tolist() == other.observations.tolist()
    for name in MEASURES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **near)
