"""The training loop: one pure step per batch, the dev set at each epoch's end, the best epoch kept."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.data import write_text
from calmix.mixing import Recipe
from calmix.models import Packed, predict_logits
from calmix.training.batches import TrainingSet, epoch_steps
from calmix.training.optimising import Schedule, adamw, learning_rate
from calmix.training.selecting import Selection, dev_figures, score
from calmix.training.state import latest, load_optimizer, optimizer_tensors, save_state
from calmix.training.stepping import Stepper

__all__ = ["Fit", "Progress", "fit", "predict_everywhere"]

# Seconds between two looks at the device: reading a loss waits for everything queued before it.
_POLL = 1.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    rate: float
    """Samples per second since this process started training."""


@dataclass
class Fit:
    """What a run has come to: saved with every checkpoint, returned at the end."""

    history: list[dict[str, Any]] = field(default_factory=list)
    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    loss: float = 0.0
    rows: int = 0
    seconds: float = 0.0


def fit(
    model: nn.Module,
    data: TrainingSet,
    recipe: Recipe,
    *,
    accelerator: Accelerator,
    fill: Mapping[str, int],
    dev: tuple[Packed, NDArray[np.int64]] | None,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    warmup: float,
    schedule: Schedule,
    clip: float,
    accumulate: int,
    select: Selection,
    patience: int,
    seed: int,
    out: Path | None = None,
    checkpoint_minutes: float = 10.0,
    checkpoint_epochs: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Fit:
    """Train `model` in place and leave it with the weights of the best epoch.

    `batch_size` is what one update sees, over all processes and accumulated parts, so that neither changes the
    result (recipes that pair inside a batch pair inside a part of it). With `out`, `log.jsonl` is kept there,
    and checkpoints, from the newest of which the run goes on.
    """
    saver = _Saver(None if out is None or not accelerator.is_main_process else out, checkpoint_minutes)
    optimizer = adamw(model.to(accelerator.device), lr=lr, weight_decay=weight_decay)
    data = data.to(accelerator.device)
    stepper = Stepper(model, data, recipe, accelerator, optimizer, fill=fill, seed=seed, clip=clip)
    layout = partial(
        epoch_steps,
        stepper.data,
        recipe,
        batch_size=batch_size,
        accumulate=accumulate,
        seed=seed,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
    )
    steps = epochs * sum(1 for _ in layout(0))
    rate_at = partial(learning_rate, steps=steps, peak=lr, warmup=warmup, schedule=schedule)
    run, best = Fit(), None
    found = None if out is None else latest(out / "checkpoints")
    if found:
        tensors, facts = found
        run, best = Fit(**facts), tensors.get("best")
        model.load_state_dict(tensors["weights"])
        load_optimizer(optimizer, tensors["optimizer"])
    clock, fresh = _Clock(run.seconds), 0

    def poll() -> None:
        nonlocal fresh
        rows, loss = stepper.read(out)
        run.loss, run.rows, fresh = run.loss + loss, run.rows + rows, fresh + rows
        run.seconds = clock.total()
        if on_progress is not None and accelerator.is_main_process:
            mean = run.loss / max(1, run.rows)
            on_progress(Progress(run.epoch + 1, epochs, run.step, steps, mean, fresh / clock.since_start()))

    while run.epoch < epochs:
        model.train()
        for parts in islice(layout(run.epoch), run.batch, None):
            stepper.step(parts, run.step, rate_at(run.step))
            run.step, run.batch = run.step + 1, run.batch + 1
            if clock.due(_POLL):
                poll()
                saver.save_if_due(run, model, optimizer, best)
        poll()
        worth = _end_of_epoch(run, model, dev, accelerator, select, clock)
        # At equal worth the later epoch is kept: that is what selecting by `none` means.
        if worth >= run.best_score:
            run.best_score, run.best_epoch = worth, run.epoch
            best = {name: tensor.clone() for name, tensor in _named(model).items()}
        saver.log(run)
        if patience and run.epoch - run.best_epoch >= patience:
            break
        if run.epoch < epochs and checkpoint_epochs and run.epoch % checkpoint_epochs == 0:
            saver.save(run, model, optimizer, best)

    if best is not None:
        model.load_state_dict(best)
    accelerator.unwrap_model(stepper.wrapped, keep_fp32_wrapper=False)
    model.eval()
    run.seconds = clock.total()
    return run


class _Saver:
    """Writes the log and the checkpoints of a run; does nothing without a folder."""

    def __init__(self, out: Path | None, minutes: float) -> None:
        self.out, self.every, self.saved = out, 60 * minutes, time.monotonic()

    def log(self, run: Fit) -> None:
        if self.out is not None:
            write_text(self.out / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in run.history))

    def save_if_due(self, run: Fit, *state: Any) -> None:
        if time.monotonic() - self.saved >= self.every:
            self.save(run, *state)

    def save(
        self, run: Fit, model: nn.Module, optimizer: torch.optim.Optimizer, best: Mapping[str, Tensor] | None
    ) -> None:
        if self.out is None:
            return
        groups: dict[str, Mapping[str, Tensor]] = {"weights": _named(model), "optimizer": optimizer_tensors(optimizer)}
        if best is not None:
            groups["best"] = best
        save_state(self.out / "checkpoints", run.step, groups, vars(run))
        self.saved = time.monotonic()


class _Clock:
    """Time spent on a run, over all the processes that worked on it."""

    def __init__(self, before: float) -> None:
        self.before, self.start = before, time.monotonic()
        self.asked = self.start

    def total(self) -> float:
        return self.before + self.since_start()

    def since_start(self) -> float:
        return time.monotonic() - self.start

    def due(self, seconds: float) -> bool:
        """Return whether so many seconds have passed since this was last true."""
        now = time.monotonic()
        if now - self.asked < seconds:
            return False
        self.asked = now
        return True


def _end_of_epoch(
    run: Fit,
    model: nn.Module,
    dev: tuple[Packed, NDArray[np.int64]] | None,
    accelerator: Accelerator,
    select: Selection,
    clock: _Clock,
) -> float:
    """Measure the dev set, write the epoch into the history and begin the next; return what this one is worth."""
    entry: dict[str, Any] = {"epoch": run.epoch + 1, "step": run.step, "loss": run.loss / max(1, run.rows)}
    worth = 0.0
    if dev is not None:
        entry["dev"] = dev_figures(predict_everywhere(model, dev[0], accelerator), dev[1])
        worth = score(entry["dev"], select)
    entry["seconds"] = round(clock.total(), 3)
    run.history.append(entry)
    run.epoch, run.batch, run.loss, run.rows = run.epoch + 1, 0, 0.0, 0
    shown = {f"dev/{name}": value for name, value in entry.get("dev", {}).items()}
    accelerator.log({"train/loss": entry["loss"], "epoch": entry["epoch"], **shown}, step=run.step)
    return worth


def predict_everywhere(model: nn.Module, packed: Packed, accelerator: Accelerator) -> NDArray[np.float32]:
    """Return the logits of every sample on every process, each process having computed its share."""
    world = accelerator.num_processes
    if world == 1:
        return predict_logits(model, packed)
    rows = np.arange(len(packed))[accelerator.process_index :: world]
    mine = predict_logits(model, packed, rows=rows)
    shares = gather_object([(rows, mine)])
    out = np.empty((len(packed), max(logits.shape[1] for _, logits in shares)), dtype=np.float32)
    for share, logits in shares:
        if len(share):
            out[share] = logits
    return out


def _named(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's weights by name, tied ones once under each name."""
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}
