"""The training loop: one pure step per batch, the dev set at each epoch's end, the best epoch kept."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import nn

from calmix.errors import TrainingError
from calmix.mixing import Recipe
from calmix.models import Packed, Pixels, predict_logits
from calmix.training.batches import TrainingSet, epoch_steps
from calmix.training.cutting import read_cuts
from calmix.training.evaluating import json_safe
from calmix.training.guiding import Guidance
from calmix.training.interrupting import Interrupted, interrupts_held
from calmix.training.keeping import Fit, Keeper
from calmix.training.launching import from_main, is_lowered, over_all, share_statistics, unwrap
from calmix.training.optimising import OptimizerName, Schedule, learning_rate
from calmix.training.selecting import Selection, dev_figures, joint, score
from calmix.training.sharding import trainable
from calmix.training.state import latest
from calmix.training.stepping import Stepper

__all__ = ["Beginning", "Progress", "begin_run_of", "epoch_entry", "fit", "predict_everywhere"]

# Seconds between two looks at the device: reading a loss waits for everything queued before it.
_POLL = 1.0
# Steps after which several processes ask each other whether to stop or to save; asking waits for the device, too.
_ASK = 8


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    rate: float
    """Samples per second over all processes, since this process started training."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """What a network is before it is fine-tuned."""

    dev_logits: NDArray[np.float32] | None
    """What it says of the dev rows."""
    fold_logits: NDArray[np.float32] | None
    """What was said of each training row without it, where that was asked."""
    head_factor: float
    """What its head has been multiplied by since: fine-tuning begins with a small one."""
    seconds: float
    note: str


def fit(
    model: nn.Module,
    data: TrainingSet,
    recipe: Recipe,
    guidance: Guidance,
    *,
    accelerator: Accelerator,
    fill: Mapping[str, int],
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None,
    epochs: int,
    batch_size: int,
    optimizer: OptimizerName = "adamw",
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
    begin: Callable[[], Beginning | None] | None = None,
    last_epoch: int | None = None,
    on_dev: Callable[[int, NDArray[np.float32]], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    cut_with: Path | None = None,
) -> Fit:
    """Train `model` in place and leave it with the weights of the best epoch.

    `begin` gives the model the head that it begins with, unless the run goes on from a checkpoint. What the model is
    before it is fine-tuned is epoch 0 of the history, and is kept if no epoch beats it. With `last_epoch` the run
    stops after that one of its `epochs`. `on_dev` is called at the end of each with what was said of the dev rows.

    `batch_size` is what one update sees, over all processes and accumulated parts, so that neither changes the
    result (recipes that pair inside a batch pair inside a part of it). With `out`, `log.jsonl` is kept there,
    and checkpoints, from the newest of which the run goes on. A KeyboardInterrupt saves one first. `cut_with` is the
    folder of the run whose batches are cut where those of this one do not fit into memory: its own is `out`.
    """
    # Before anything is wrapped around the model.
    began = None if begin is None or _is_begun(out) else begin()
    trained, updates, shards = trainable(model, accelerator, optimizer, lr=lr, weight_decay=weight_decay)
    stepper = Stepper(
        trained,
        data,
        recipe,
        accelerator,
        updates,
        fill=fill,
        seed=seed,
        clip=clip,
        guidance=guidance,
        shards=shards,
    )
    layout = partial(
        epoch_steps,
        data,
        recipe,
        batch_size=batch_size,
        seed=seed,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        signals=guidance.columns,
    )
    per_epoch = sum(1 for _ in layout(0, accumulate=1))
    cuts, steps = read_cuts(cut_with or out, accumulate=accumulate, batch_size=batch_size), epochs * per_epoch
    rate_at = partial(learning_rate, steps=steps, peak=lr, warmup=warmup, schedule=schedule)
    keeper = Keeper(model, stepper, out, minutes=checkpoint_minutes, shards=shards)
    run, polled, last_epoch = keeper.resume(), time.monotonic(), epochs if last_epoch is None else last_epoch

    def poll() -> None:
        nonlocal polled
        keeper.read()
        polled = time.monotonic()
        _tell_new(stepper.notes, run, on_note)
        if on_progress is not None and accelerator.is_main_process:
            mean = run.loss / max(1, run.rows)
            on_progress(Progress(run.epoch + 1, epochs, run.step, steps, mean, keeper.rate()))

    # False while weights, optimiser and counters disagree, or several processes may be at different steps: nothing may
    # be saved then.
    settled, alone = True, accelerator.num_processes == 1
    if began is not None:
        begin_run_of(keeper, began, dev, select, checkpoint_minutes, on_dev)
    if run.beginning:
        _tell_new([run.beginning], run, on_note)
    try:
        with interrupts_held() as interrupted:
            # Asked here, so that a run which was stopped after its last epoch has no other after it when it goes on.
            while run.epoch < last_epoch and not (patience and run.epoch - run.best_epoch >= patience):
                if run.batch == 0:
                    guidance.begin_epoch(run.epoch)
                trained.train()
                batches = list(layout(run.epoch, accumulate=cuts.of_epoch(run.step - run.batch)))
                # As far as can be told: epochs may become shorter or longer as regions are renewed.
                steps = run.step - run.batch + (epochs - run.epoch) * len(batches)
                data.expect(batches[run.batch :])
                for parts in batches[run.batch :]:
                    settled = False
                    # An epoch of another length (regions renewed) takes the same share of the schedule.
                    position = run.epoch * per_epoch + run.batch * per_epoch / len(batches)
                    with cuts.watching(run.step, since=keeper.kept):
                        stepper.step(parts, run.step, rate_at(position))
                    run.step, run.batch = run.step + 1, run.batch + 1
                    settled = alone
                    ask = run.step % _ASK == 0 or run.batch == len(batches)
                    if _after_step(interrupted(), keeper, poll, look=time.monotonic() - polled >= _POLL, ask=ask):
                        settled = True
                        raise KeyboardInterrupt
                poll()
                settled = False
                with nullcontext() if shards is None else shards.put_together():
                    keeper.judge(_end_of_epoch(keeper, dev, accelerator, select, on_dev))
                settled = True
                keeper.log()
                if _any_told(interrupted(), accelerator):
                    raise KeyboardInterrupt
                if run.epoch < last_epoch and checkpoint_epochs and run.epoch % checkpoint_epochs == 0:
                    keeper.save()
                elif run.epoch < last_epoch:
                    keeper.save_if_due()
    except KeyboardInterrupt:
        raise _stopped(keeper, settled, steps) from None

    keeper.restore_best()
    unwrap(model)
    model.eval()
    run.seconds = keeper.seconds()
    return run


def _is_begun(out: Path | None) -> bool:
    """Return whether there is a checkpoint to go on from."""
    return out is not None and from_main(partial(latest, out / "checkpoints")) is not None


def begin_run_of(
    keeper: Keeper,
    began: Beginning,
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None,
    select: Selection,
    minutes: float,
    on_dev: Callable[[int, NDArray[np.float32]], None] | None,
) -> None:
    """Write down what the network is before it is fine-tuned, as epoch 0, and keep it as the best so far."""
    run = keeper.run
    keeper.before += began.seconds
    run.head_factor, run.beginning = began.head_factor, began.note
    entry, worth = _beginning_entry(began, None if dev is None else dev[1], select)
    run.history.append(entry)
    _track(entry, keeper.stepper.accelerator)
    if on_dev is not None and began.dev_logits is not None:
        on_dev(0, began.dev_logits)
    # What a regression says of features is the network's word up to rounding: a temperature is fitted on that.
    run.dev, run.fold_logits = None, began.fold_logits
    keeper.judge(worth)
    # A run that is killed soon need not do it again.
    if began.fold_logits is None and began.seconds > 60 * minutes / 10:
        keeper.save()


def _beginning_entry(
    began: Beginning, labels: NDArray[np.int64] | None, select: Selection
) -> tuple[dict[str, Any], float]:
    """Return the line of the log for a network before it is fine-tuned, and what it is worth."""
    entry: dict[str, Any] = {"epoch": 0, "step": 0, "loss": None}
    worth = 0.0
    if began.dev_logits is not None and labels is not None:
        if not np.isfinite(began.dev_logits.max(axis=1)).all():
            raise TrainingError("predictions are not finite before any training: look at the model's weights")
        figures = dev_figures(began.dev_logits, labels)
        worth = score(figures, select)
        entry["dev"], entry["joint"] = json_safe(figures), joint(began.dev_logits, labels)
    entry["seconds"] = round(began.seconds, 3)
    return entry, worth if math.isfinite(worth) else -sys.float_info.max


def _tell_new(notes: list[str], run: Fit, on_note: Callable[[str], None] | None) -> None:
    """Add to a run the notes that it does not have yet, and pass them on."""
    for note in notes:
        if note not in run.notes:
            run.notes.append(note)
            if on_note is not None:
                on_note(note)


def _after_step(told: bool, keeper: Keeper, poll: Callable[[], None], *, look: bool, ask: bool) -> bool:
    """Look at the device and save the run where it is time to; return whether to stop instead.

    Several processes stop at the same step, whichever of them was told to, and save at the same one, when it is time
    by the main one's clock: where they are to `ask` each other.
    """
    accelerator = keeper.stepper.accelerator
    if accelerator.num_processes == 1:
        save = look and keeper.is_due()
    elif ask:
        due = keeper.is_due() and accelerator.is_main_process
        asked = torch.tensor([told, due], dtype=torch.int32, device=accelerator.device)
        told, save = (count > 0 for count in accelerator.reduce(asked).tolist())
    else:
        told = save = False
    if told:
        return True
    if look or save:
        poll()
    if save:
        keeper.save()
    return False


def _any_told(told: bool, accelerator: Accelerator) -> bool:
    """Return whether this process or any other was told to stop."""
    if accelerator.num_processes == 1:
        return told
    asked = torch.tensor([told], dtype=torch.int32, device=accelerator.device)
    return bool(accelerator.reduce(asked).item() > 0)


def _stopped(keeper: Keeper, settled: bool, steps: int) -> Interrupted:
    """Return what to raise for a Ctrl-C, the state of the run being saved if it can be."""
    keeper.read()
    if settled and keeper.save():
        what = "saved; the same command goes on from there"
    elif keeper.kept:
        what = f"not saved; the same command goes on from step {keeper.kept}"
    else:
        what = "not saved"
    return Interrupted(f"stopped at step {keeper.run.step} of {steps}, {what}")


def _end_of_epoch(
    keeper: Keeper,
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None,
    accelerator: Accelerator,
    select: Selection,
    on_dev: Callable[[int, NDArray[np.float32]], None] | None,
) -> float:
    """Measure the dev set, write the epoch into the history and begin the next; return what this one is worth."""
    run = keeper.run
    share_statistics(keeper.model, accelerator)
    rows, loss = over_all(run.rows, run.loss)
    entry, worth = epoch_entry(keeper.model, dev, accelerator, select, run=run, loss=loss / max(1, rows), on_dev=on_dev)
    guidance = keeper.stepper.guidance
    if guidance is not None:
        guidance.end_epoch()
        if partners := guidance.partners():
            entry["partners"] = partners
    entry["seconds"] = round(keeper.seconds(), 3)
    run.history.append(entry)
    run.epoch, run.batch, run.loss, run.rows = run.epoch + 1, 0, 0.0, 0
    keeper.stepper.restart()
    _track(entry, accelerator)
    return worth


def _track(entry: Mapping[str, Any], accelerator: Accelerator) -> None:
    """Tell trackers of an epoch."""
    shown = {f"dev/{name}": value for name, value in entry.get("dev", {}).items() if value is not None}
    if entry["loss"] is not None:
        shown["train/loss"] = entry["loss"]
    accelerator.log({"epoch": entry["epoch"], **shown}, step=entry["step"])


def epoch_entry(
    model: nn.Module,
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None,
    accelerator: Accelerator,
    select: Selection,
    *,
    run: Fit,
    loss: float,
    on_dev: Callable[[int, NDArray[np.float32]], None] | None = None,
) -> tuple[dict[str, Any], float]:
    """Return the line of the log for the epoch that ends, with the figures of the dev set, and what it is worth."""
    entry: dict[str, Any] = {"epoch": run.epoch + 1, "step": run.step, "loss": loss}
    worth = 0.0
    if dev is not None:
        logits = predict_everywhere(model, dev[0], accelerator)
        if not np.isfinite(logits.max(axis=1)).all():
            raise TrainingError(
                f"predictions stopped being finite in epoch {run.epoch + 1}: training diverged. Try a lower --lr."
            )
        if on_dev is not None:
            on_dev(run.epoch + 1, logits)
        # In lower precision they do to choose an epoch by; a temperature is fitted on what the finished model says.
        run.dev = None if is_lowered(model) else logits
        figures = dev_figures(logits, dev[1])
        worth = score(figures, select)
        entry["dev"], entry["joint"] = json_safe(figures), joint(logits, dev[1])
    # A number, whatever came out: it is compared and saved.
    return entry, worth if math.isfinite(worth) else -sys.float_info.max


def predict_everywhere(model: nn.Module, packed: Packed | Pixels, accelerator: Accelerator) -> NDArray[np.float32]:
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
