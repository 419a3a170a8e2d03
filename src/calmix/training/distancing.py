"""How far is far: the training data as a trained network sees it, what is usual, and how much surer one is near it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.calibration import Temperature, nll
from calmix.data import Examples
from calmix.models import Cooling, Packed, Pixels, head_of, predict_logits
from calmix.models.cooling import NEAREST_AND_FARTHEST, rewriting_logits
from calmix.training.loop import predict_everywhere

__all__ = ["Logits", "fitted_slope", "knows_something", "reference_for", "what_is_said"]

# Sequences of the training data that its shape is told from.
_REFERENCE = 4000
# With fewer dev rows, what is usual is not known well enough to call anything far.
_LEAST_DEV = 100
# Standard errors by which a network must beat guessing on dev before what it calls far is worth listening to.
_ERRORS = 3.0
# How much the slope may leave what it is expected to be, and how many dev rows at most have a say in it: in domain
# alone, ever more rows would ask for ever more, which is too much out of domain.
_SPREAD, _HEARD = 0.05, 1000
_SLOPES = np.arange(0.0, 0.5, 0.01)


@dataclass(frozen=True, eq=False)
class Logits:
    """What a trained network says about each data set: as it is, and corrected for the distance from its data."""

    raw: Mapping[str, NDArray[np.float32]]
    cooled: Mapping[str, NDArray[np.float32]]
    cooling: Cooling | None = None
    notes: list[str] = field(default_factory=list)


def what_is_said(
    network: nn.Module,
    packed: Mapping[str, Packed | Pixels],
    sets: Mapping[str, Examples],
    accelerator: Accelerator,
    *,
    slope: float,
    seed: int,
    known: Mapping[str, NDArray[np.float32]] | None = None,
) -> Logits:
    """Return what a network says about all sets but train; `slope` is how much less sure it should be far away.

    `known` is what it said already, as it is.
    """
    judged = [name for name in sets if name != "train"]
    asked = slope > 0 and sets["train"].kind != "image"  # it was only measured on texts
    enough = len(packed["dev"]) >= _LEAST_DEV and len(packed["train"]) >= 2 * head_of(network).in_features
    if not (asked and enough):
        said = known or {}
        raw = {
            name: said[name] if name in said else predict_everywhere(network, packed[name], accelerator)
            for name in judged
        }
        note = "too few rows to tell what is far from the training data: the temperature alone corrects confidence"
        return Logits(raw, raw, notes=[note] if asked else [])
    start = reference_for(network, packed["train"], sets["train"].labels, seed=seed)
    both = {name: _with_distances(network, packed[name], start, accelerator) for name in judged}
    logits, far = both["dev"]
    if not knows_something(logits, sets["dev"].labels, choices=sets["dev"].kind == "choices"):
        raw = {name: logits for name, (logits, _) in both.items()}
        note = "on dev the model is hardly better than guessing: the temperature alone corrects confidence"
        return Logits(raw, raw, notes=[note])
    usual = (float(far.mean()), float(max(far.std(), 1e-6)))
    fitted = fitted_slope(logits, (far - usual[0]) / usual[1], sets["dev"].labels, expected=slope)
    cooling = replace(start, slope=fitted, usual=usual)
    note = (
        "confidence falls far from the training data; that is not in the weights but beside them (calmix.json, "
        "calmix.safetensors), and only calmix applies it: other programs get the temperature alone"
    )
    raw = {name: logits for name, (logits, _) in both.items()}
    cold = {name: _cooled(logits, (far - usual[0]) / usual[1], fitted) for name, (logits, far) in both.items()}
    return Logits(raw, cold, cooling, [note])


def reference_for(network: nn.Module, train: Packed | Pixels, labels: NDArray[np.int64], *, seed: int) -> Cooling:
    """Return where the training data of each class lie for a network, and how they spread; its slope is 0."""
    per_row = 1 if train.counts is None else int(np.ceil(train.counts.mean()))
    rows = np.random.default_rng([seed, 4]).permutation(len(train))[: _REFERENCE // per_row]
    features = _features(network, train, rows)
    group = np.zeros(len(features), np.int64) if train.counts is not None else labels[rows]
    _, places = np.unique(group, return_inverse=True)
    where = torch.from_numpy(places).to(features.device)
    centres = torch.stack([features[where == k].mean(0) for k in range(int(where.max()) + 1)])
    whiten = _whitening(features - centres[where])
    return Cooling(0.0, centres @ whiten, whiten, (0.0, 1.0))


def _cooled(logits: NDArray[np.float32], far: NDArray[np.float64], slope: float) -> NDArray[np.float32]:
    return (logits / np.exp(slope * np.clip(far, *NEAREST_AND_FARTHEST))[:, None]).astype(np.float32)


def fitted_slope(
    logits: NDArray[np.float32], far: NDArray[np.float64], labels: NDArray[np.int64], *, expected: float
) -> float:
    """Return the slope that dev data ask for, held near what is expected as by a normal prior."""

    def cost(slope: float) -> float:
        cold = _cooled(logits, far, slope)
        loss = nll(Temperature.fit(cold, labels)(cold), labels)
        return min(len(labels), _HEARD) * loss + ((slope - expected) / _SPREAD) ** 2 / 2

    return float(min(_SLOPES, key=cost))


def knows_something(logits: NDArray[np.float32], labels: NDArray[np.int64], *, choices: bool = False) -> bool:
    """Return whether logits, with a temperature, are surely better by NLL than the classes' shares (or any choice)."""
    rows = np.arange(len(labels))
    if choices:
        guess = 1 / np.isfinite(logits).sum(1)
    else:
        guess = (np.bincount(labels, minlength=logits.shape[1]) / len(labels))[labels]
    gain = np.log(np.maximum(Temperature.fit(logits, labels)(logits)[rows, labels], 1e-12)) - np.log(guess)
    return bool(gain.mean() > _ERRORS * gain.std() / np.sqrt(len(labels)))


def _features(network: nn.Module, packed: Packed | Pixels, rows: NDArray[np.int64]) -> Tensor:
    """Return what the head reads of some rows, in their order; of rows of choices, of each, in any order."""
    if packed.counts is None:

        def instead(_logits: Tensor, features: Tensor) -> Tensor:
            return features[:, 0]

        with rewriting_logits(network, instead):
            return torch.from_numpy(predict_logits(network, packed, rows=rows)).to(next(network.parameters()).device)
    seen: list[Tensor] = []

    def beside(logits: Tensor, features: Tensor) -> Tensor:
        seen.append(features.flatten(0, 1).float())
        return logits

    with rewriting_logits(network, beside):
        predict_logits(network, packed, rows=rows)
    return torch.cat(seen)


def _with_distances(
    network: nn.Module, packed: Packed | Pixels, cooling: Cooling, accelerator: Accelerator
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the logits of each row and its distance: in one pass, or in two for choices, which leave no room."""

    def after(logits: Tensor, features: Tensor) -> Tensor:
        return torch.cat([logits.float(), cooling.distances(features)[:, None]], 1)

    def instead(logits: Tensor, features: Tensor) -> Tensor:
        return cooling.distances(features)[:, None].expand(-1, logits.shape[1])

    if packed.counts is None:
        with rewriting_logits(network, after):
            both = predict_everywhere(network, packed, accelerator)
        return np.ascontiguousarray(both[:, :-1]), both[:, -1].astype(np.float64)
    with rewriting_logits(network, instead):
        far = predict_everywhere(network, packed, accelerator)[:, 0].astype(np.float64)
    return predict_everywhere(network, packed, accelerator), far


def _whitening(centred: Tensor) -> Tensor:
    """Return W with W·Wᵀ the inverse covariance, a thousandth of its mean variance added in every direction."""
    spread = centred.T.double() @ centred.double() / len(centred)
    spread += 1e-3 * spread.diagonal().mean() * torch.eye(len(spread), dtype=spread.dtype, device=spread.device)
    found: Tensor = torch.linalg.cholesky(torch.linalg.inv(spread))
    return found.float()
