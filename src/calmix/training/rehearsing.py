"""A few steps of a run, timed, to tell what the whole of it would take."""

import resource
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from calmix.mixing import Recipe, Signal
from calmix.training.batches import TrainingSet, epoch_steps
from calmix.training.guiding import Guidance, Record
from calmix.training.sharding import trainable
from calmix.training.stepping import Stepper

__all__ = ["rehearse", "rehearse_run"]

_STEPS = 4


def rehearse(stepper: Stepper, *, epochs: int, batch_size: int, accumulate: int, seed: int) -> dict[str, Any]:
    """Return the steps of a run, its estimated seconds of training, and the largest memory it will ask for.

    The widest batch of the first epoch is run first, which shows the memory; then a few others are timed and
    the time of all is put together from the number of tokens in each.
    """
    layout = partial(epoch_steps, batch_size=batch_size, accumulate=accumulate, seed=seed, rank=0, world=1)
    batches = list(layout(stepper.data, stepper.recipe, 0))
    sizes = [sum(len(part.rows) * part.width * (part.choices or 1) for part in parts) for parts in batches]
    widest = max(range(len(batches)), key=sizes.__getitem__)
    stepper.model.train()
    tokens = seconds = 0.0
    for turn, number in enumerate([widest, *range(min(_STEPS, len(batches)))]):
        began = time.perf_counter()
        stepper.step(batches[number], number, 0.0)
        stepper.read(None)
        if turn > 0 or len(batches) == 1:
            tokens, seconds = tokens + sizes[number], seconds + time.perf_counter() - began
    return {
        "steps": epochs * len(batches),
        "seconds": round(epochs * sum(sizes) * seconds / tokens, 3),
        "memory_bytes": _peak(),
    }


def rehearse_run(
    network: nn.Module,
    data: TrainingSet,
    recipe: Recipe,
    accelerator: Accelerator,
    fill: Mapping[str, int],
    hyper: Mapping[str, Any],
    record: Record,
    two_runs: bool,
    given: Mapping[str, Signal],
    *,
    fitted: bool = False,
    folds: int | None = None,
) -> dict[str, Any]:
    """Return what a run would take, with all that goes before it and beside it.

    A head that is `fitted` takes one look at all rows. Each of several `folds` is left out of a run of its own.
    """
    rates = {name: hyper[name] for name in ("lr", "weight_decay")}
    trained, optimizer, shards = trainable(network, accelerator, hyper["optimizer"], **rates)
    data = data.to(accelerator.device)
    # Recipes guided by dynamics are plain without; what a teacher says is not to be done without.
    guidance = Guidance(recipe, network, data, accelerator, given=given) if given else None
    stepper = Stepper(
        trained,
        data,
        recipe,
        accelerator,
        optimizer,
        fill=fill,
        seed=hyper["seed"],
        clip=hyper["clip"],
        guidance=guidance,
        shards=shards,
    )
    epoch = rehearse(stepper, epochs=1, **{name: hyper[name] for name in ("batch_size", "accumulate", "seed")})
    runs = steps = 2 if two_runs else 1  # the plain run before it takes as much again
    if folds and hyper["epochs"] > 0:  # each makes as many updates as the run itself, on all parts but one
        runs, steps = runs + folds - 1, steps + folds
    look = 1 / 3  # a forward is about a third of a step
    epochs = hyper["epochs"] * (1 + look if record == "evaluation" else 1) + (look if fitted else 0)
    return {
        **epoch,
        "steps": steps * hyper["epochs"] * epoch["steps"],
        "seconds": round(runs * epochs * epoch["seconds"], 3),
    }


def _peak() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # Kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
