"""What `default_runs.py` kept, read back: logits, distances and targets by task, way to train, variant and seed."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_DEVIATION = 8
CHOICES = ("swag",)
DISTANCES = ("neighbours-head", "mahalanobis-head", "neighbours-middle", "mahalanobis-middle", "energy")

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Said:
    """What a run says about a set: logits, distances (none of some), and targets [n, K]."""

    logits: Array
    far: Array
    targets: Array
    choices: bool = False

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.targets.argmax(1)

    def take(self, rows: NDArray[Any]) -> "Said":
        return replace(self, logits=self.logits[rows], far=self.far[rows], targets=self.targets[rows])


Sets = dict[str, Said]
Runs = dict[tuple[str, str, str], dict[int, Sets]]
"""Task, way, variant → seed → set."""


def load(folders: Sequence[Path]) -> Runs:
    """Return the sets of each seed by (task, way, variant)."""
    found: dict[tuple[str, str, str], dict[int, Sets]] = defaultdict(lambda: defaultdict(dict))
    for folder in folders:
        for path in sorted(folder.glob("*.npz")):
            way, task = path.name.removesuffix(".npz").split(".")
            if way == "labels":
                continue
            labels, arrays = np.load(folder / f"labels.{task}.npz"), np.load(path)
            for key in arrays.files:
                seed, variant, *rest = key.split("/")
                if rest[-1] == "logits":
                    said = _said(arrays, f"{seed}/{variant}/{rest[0]}", labels[f"labels/{rest[0]}"], task in CHOICES)
                    found[task, way, variant][int(seed)][rest[0]] = said
    for seeds in found.values():
        for sets in seeds.values():
            energies = {name: -np.logaddexp.reduce(said.logits, axis=1) for name, said in sets.items()}
            mean, deviation = energies["dev"].mean(), energies["dev"].std()
            for name, said in sets.items():
                sets[name] = replace(said, far=np.column_stack([said.far, (energies[name] - mean) / deviation]))
    return {key: dict(value) for key, value in found.items()}


def _said(arrays: Any, at: str, labels: NDArray[np.int64], choices: bool) -> Said:
    logits = arrays[f"{at}/logits"].astype(np.float64)
    there = f"{at}/distances" in arrays.files
    far = arrays[f"{at}/distances"] / PER_DEVIATION if there else np.zeros((len(logits), 4))
    targets = np.eye(logits.shape[1])[labels]
    if at.endswith("/mixed"):
        weight = arrays[f"{at}/weight"].astype(np.float64)[:, None]
        targets = weight * targets + (1 - weight) * targets[arrays[f"{at}/partner"].astype(np.int64)]
    return Said(logits, far, targets, choices)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


def ensemble(members: Iterable[Sets]) -> Sets:
    """Return the mean of several runs' probabilities, as logits, and of their distances."""
    runs = list(members)
    return {
        name: replace(
            said,
            logits=np.log(np.mean([np.exp(log_softmax(sets[name].logits)) for sets in runs], axis=0)),
            far=np.mean([sets[name].far for sets in runs], axis=0),
        )
        for name, said in runs[0].items()
        if name != "mixed"
    }
