"""A few steps of a run, timed, to tell what the whole of it would take."""

import resource
import sys
import time
from functools import partial
from typing import Any

import torch

from calmix.training.batches import epoch_steps
from calmix.training.stepping import Stepper

__all__ = ["rehearse"]

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


def _peak() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # Kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
