"""How far is far: the training data as a trained network sees it, and what is usual for data it has not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.models import Packed, Pixels, anatomy, predict_logits, reads_pixels
from calmix.models.cooling import Cooling, watched
from calmix.training.loop import predict_everywhere

__all__ = ["Logits", "cooling_for", "what_is_said"]

# Rows of the training data that its shape is told from.
_ROWS = 4000
# With fewer dev rows, what is usual is not known well enough to call anything far.
_LEAST_DEV = 100


@dataclass(frozen=True, eq=False)
class Logits:
    """What a trained network says about each data set: as it is, and less sure far from the training data."""

    raw: Mapping[str, NDArray[np.float32]]
    cooled: Mapping[str, NDArray[np.float32]]
    cooling: Cooling | None = None
    notes: list[str] = field(default_factory=list)


def what_is_said(
    network: nn.Module,
    packed: Mapping[str, Packed | Pixels],
    judged: Sequence[str],
    accelerator: Accelerator,
    *,
    slope: float,
    seed: int,
) -> Logits:
    """Return what a network says about some of its data sets; `slope` is how much less sure it is far from the data."""
    raw = {name: predict_everywhere(network, packed[name], accelerator) for name in judged}
    cooling = cooling_for(network, packed["train"], packed["dev"], slope=slope, seed=seed)
    notes = _notes(slope > 0, cooling)
    if cooling is None:
        return Logits(raw, raw, None, notes)
    cold = {name: predict_everywhere(network, packed[name], accelerator, cooling) for name in judged}
    return Logits(raw, cold, cooling, notes)


def cooling_for(
    network: nn.Module, train: Packed | Pixels, dev: Packed | Pixels, *, slope: float, seed: int
) -> Cooling | None:
    """Return what makes logits smaller far from the training data; None where there is too little data to tell.

    Texts are compared halfway up the network: there, what a text is like has not yet given way to what its label is.
    Images are compared by what the head reads.
    """
    features = network.get_submodule(anatomy(network).head).in_features
    if slope == 0 or len(dev) < _LEAST_DEV or len(train) < 2 * features:  # type: ignore[operator]
        return None
    layer = 0 if reads_pixels(network) else len(anatomy(network).layers) // 2
    rows = np.random.default_rng([seed, 4]).permutation(len(train))[:_ROWS]
    known = _features(network, train, layer, rows)
    centre = known.mean(0)
    whiten = _whitening(known - centre)
    found = Cooling(slope, layer, (centre @ whiten)[None], whiten, (0.0, 1.0))
    usual = found.distances(_features(network, dev, layer))
    return Cooling(slope, layer, found.centres, whiten, (float(usual.mean()), float(usual.std().clamp_min(1e-6))))


def _notes(asked: bool, cooling: Cooling | None) -> list[str]:
    if cooling is not None:
        return [
            "confidence falls far from the training data; that is not in the weights but beside them (calmix.json, "
            "calmix.safetensors), and only calmix applies it: other programs get the temperature alone"
        ]
    if asked:
        return ["too few rows to tell what is far from the training data: the temperature alone corrects confidence"]
    return []


def _features(network: nn.Module, packed: Packed | Pixels, layer: int, rows: NDArray[np.int64] | None = None) -> Tensor:
    """Return what the network holds of each text [texts, features], in any order."""
    with watched(network, layer) as seen:
        predict_logits(network, packed, rows=rows)
    return torch.cat(seen)


def _whitening(centred: Tensor) -> Tensor:
    """Return W with W·Wᵀ the inverse covariance, shrunk towards a sphere as far as so few rows ask for (OAS).

    Chen et al. 2010, equation 23.
    """
    n, p = centred.shape
    spread = centred.T.double() @ centred.double() / n
    trace, square = spread.trace(), spread.square().sum()
    share = ((1 - 2 / p) * square + trace**2) / ((n + 1 - 2 / p) * (square - trace**2 / p)).clamp_min(1e-12)
    share = share.clamp(1e-3, 1.0)
    ball = torch.eye(p, dtype=spread.dtype, device=spread.device) * trace / p
    inverse = torch.linalg.inv((1 - share) * spread + share * ball)
    found: Tensor = torch.linalg.cholesky(inverse)
    return found.float()
