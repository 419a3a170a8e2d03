"""Several seeds trained side by side, in one of the ways that the default is compared with; what each then says."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from default_looking import distances, look
from default_tasks import Prepared, loaded
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.calibration import Temperature, nll
from calmix.dynamics import Dynamics
from calmix.mixing import TEACHER, Recipe, choose
from calmix.models import anatomy
from calmix.training.averaging import Averaged
from calmix.training.batches import epoch_steps_together
from calmix.training.guiding import Guidance
from calmix.training.optimising import adamw, learning_rate
from calmix.training.stepping import Stepper
from calmix.training.together import SideBySide

EPOCHS, BATCH, LR, WARMUP = 3, 32, 5e-5, 0.1
# Distances are kept in eighths of dev's standard deviation from dev's mean.
PER_DEVIATION = 8
MAPS, TEACHES = "erm", "informed"

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("erm", {}),
    "own": ("auto", {"own": 0.5}),
    "input-mixup": ("input-mixup", {}),
    "aum-saliency": ("aum-saliency", {"smoothing": 0.03}),
    "erl": ("erl", {}),
    "tdmixup": ("tdmixup", {}),
    "informed": ("informed-mixup", {}),
    "informed-sd": ("distil", {}),
    "own-quarter": ("auto", {"own": 0.25}),
    "mix": ("auto", {"alpha": 1.0}),
    "mix-own": ("auto", {"alpha": 1.0, "own": 0.3}),
    "mix-erl": ("auto", {"alpha": 0.4, "entropy": 0.1}),
    "halves": ("auto", {"alpha": 1.0, "halves": True}),
    "doubt": ("auto", {"doubt": 0.1, "distrust": 0.25}),
    "smoothing": ("label-smoothing", {}),
}
# As in the papers, what guides these is the record of a run before: that of `erm` with the same seed.
MAPPED = ("aum-saliency", "tdmixup", "informed")
TAUGHT = ("informed-sd",)


@dataclass(eq=False)
class Known:
    """What earlier ways have left for later ones, by task: the dynamics of each seed, and what its teacher says."""

    maps: dict[str, list[Dynamics]] = field(default_factory=dict)
    lessons: dict[str, list[Tensor]] = field(default_factory=dict)

    def lacks(self, way: str, task: str) -> bool:
        """Return whether a way needs what is not there."""
        return (way in MAPPED and task not in self.maps) or (way in TAUGHT and task not in self.lessons)


@dataclass(frozen=True, eq=False)
class Trained:
    """The best epoch, and its state, of the weights and of each average, and each epoch's state where asked for."""

    kept: dict[str, list[tuple[int, dict[str, Tensor]]]]
    maps: list[Dynamics]
    steps: int


def run(
    task: Prepared,
    called: str,
    model: str,
    way: str,
    seeds: Sequence[int],
    known: Known,
    *,
    shares: Sequence[float] = (),
    epochs: bool = False,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays of all seeds trained in one way, and what that took; later ways learn from `known`."""
    device = task.data.labels.device
    accelerator = Accelerator(mixed_precision="bf16" if device.type == "cuda" else "no", cpu=device.type == "cpu")
    models = [copy.deepcopy(loaded(model, task.label_names, task.choices, seed)[0]).to(device) for seed in seeds]
    each = [
        Guidance(
            recipe := choose(*WAYS[way]),
            network,
            task.data,
            accelerator,
            dynamics=known.maps[called][place] if way in MAPPED else None,
            online=way not in MAPPED,
            seed=seed,
            given={TEACHER: known.lessons[called][place]} if way in TAUGHT else None,
        )
        for place, (network, seed) in enumerate(zip(models, seeds, strict=True))
    ]
    start = time.monotonic()
    done = train(models, task, recipe, accelerator, seeds, each, shares, epochs=epochs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    trained = time.monotonic()
    if way == MAPS:
        known.maps[called] = done.maps
    arrays: dict[str, NDArray[Any]] = {}
    for variant, states in done.kept.items():
        for seed, network, (epoch, state) in zip(seeds, models, states, strict=True):
            network.load_state_dict(state)
            said = collected(network, task, far=not variant.startswith("epoch"))
            arrays |= {f"{seed}/{variant}/{what}": values for what, values in said.items()}
            arrays[f"{seed}/{variant}/epoch"] = np.array(epoch)
    if way == TEACHES:
        for network, (_, state) in zip(models, done.kept["raw"], strict=True):
            network.load_state_dict(state)
        # Cloned: what was made in inference mode cannot be trained with.
        known.lessons[called] = [look(network, task.data.packed, layer=None)["logits"].clone() for network in models]
    looked = time.monotonic()
    facts = {"training": round(trained - start, 2), "looking": round(looked - trained, 2), "steps": done.steps}
    return arrays, facts


def train(
    models: Sequence[nn.Module],
    task: Prepared,
    recipe: Recipe,
    accelerator: Accelerator,
    seeds: Sequence[int],
    each: Sequence[Guidance],
    shares: Sequence[float],
    *,
    epochs: bool,
) -> Trained:
    """Train all models side by side, and keep the best epoch of the weights and of each average along the run."""
    optimizers = [adamw(model.parameters(), lr=LR, weight_decay=0.0) for model in models]
    guidance: Any = SideBySide(each)
    stepper = Stepper(
        models[0],
        task.data,
        recipe,
        accelerator,
        optimizers[0],
        fill=task.fill,
        seed=seeds[0],
        clip=1.0,
        guidance=guidance,
        beside=list(zip(models[1:], optimizers[1:], strict=True)),
    )
    layout = partial(epoch_steps_together, task.data, recipe, batch_size=BATCH, seeds=seeds)
    per_epoch = sum(1 for _ in layout(0, signals=[one.columns for one in each]))
    steps, number = EPOCHS * per_epoch, 0
    averages = {"raw": Averaged(models, 0.0, steps)} | {f"{s:g}": Averaged(models, s, steps) for s in shares}
    best: dict[str, list[tuple[float, int, dict[str, Tensor]]]] = {name: [] for name in averages}
    for epoch in range(EPOCHS):
        guidance.begin_epoch(epoch)
        models[0].train()
        batches = list(layout(epoch, signals=[one.columns for one in each]))
        for place, parts in enumerate(batches):
            position = (epoch + place / len(batches)) * per_epoch
            stepper.step(parts, number, learning_rate(position, steps=steps, peak=LR, warmup=WARMUP, schedule="linear"))
            number += 1
            for averaged in averages.values():
                averaged.update()
        guidance.end_epoch()
        stepper.restart()
        for name, averaged in averages.items():
            with averaged.in_place():
                worths = [worth(model, task) for model in models]
                states = [{key: value.clone() for key, value in model.state_dict().items()} for model in models]
            found = [(w, epoch + 1, state) for w, state in zip(worths, states, strict=True)]
            best[name] = [max(pair, key=lambda one: one[0]) for pair in zip(best[name] or found, found, strict=True)]
            if epochs:
                best[f"epoch{epoch + 1}"] = found
    kept = {name: [(epoch, state) for _, epoch, state in found] for name, found in best.items()}
    return Trained(kept, [one.dynamics() for one in each], number)


def worth(model: nn.Module, task: Prepared) -> float:
    logits = look(model, task.judged["dev"], layer=None)["logits"].cpu().numpy()
    labels = task.labels["dev"]
    return -nll(Temperature.fit(logits, labels)(logits), labels)


def collected(model: nn.Module, task: Prepared, *, far: bool) -> dict[str, NDArray[Any]]:
    """Return what a model says about each set, and how far its samples are from the training data."""
    layer = len(anatomy(model).layers) // 2 if far else None
    near: Mapping[str, Tensor] = look(model, task.data.packed, layer=layer, rows=task.reference) if far else {}
    labels = None if task.choices else task.data.labels[torch.from_numpy(task.reference).to(task.data.labels.device)]
    found: dict[str, NDArray[Any]] = {}
    usual: tuple[Tensor, Tensor] | None = None
    for name, packed in task.judged.items():
        seen = look(model, packed, layer=layer, mixing=task.fill if name == "mixed" else None)
        found[f"{name}/logits"] = seen["logits"].half().cpu().numpy()
        if not far:
            continue
        away = distances(seen, near, labels)
        usual = usual or (away.mean(0), away.std(0))  # dev comes first
        steps = (PER_DEVIATION * (away - usual[0]) / usual[1]).round()
        found[f"{name}/distances"] = steps.clamp(-127, 127).to(torch.int8).cpu().numpy()
        if name == "mixed":
            found["mixed/partner"] = seen["partner"].short().cpu().numpy()
            found["mixed/weight"] = seen["weight"].half().cpu().numpy()
    return found
