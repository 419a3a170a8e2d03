"""Several runs of one kind, each with its own seed, trained in the same steps: on a GPU far cheaper than one by one."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from calmix.data.reusing import reusing
from calmix.dynamics import Recorder
from calmix.errors import TrainingError
from calmix.mixing import RECIPES, Step
from calmix.models import reads_pixels
from calmix.training.batches import epoch_steps_together
from calmix.training.guiding import Guidance
from calmix.training.halves import Ready, Run, begun, ended
from calmix.training.interrupting import Interrupted, interrupts_held
from calmix.training.keeping import Fit, Keeper
from calmix.training.loop import Beginning, Progress, begin_run_of, epoch_entry
from calmix.training.optimising import learning_rate, optimizer_for
from calmix.training.pipeline import stages
from calmix.training.seeding import seed_for
from calmix.training.stepping import Stepper

__all__ = ["SideBySide", "fit_together", "train_together"]

# Seconds between two looks at the device.
_POLL = 1.0


def train_together(asked: Sequence[Mapping[str, Any]], *, on_cpu: bool = False) -> list[Run | Exception]:
    """Return the runs that `train` would make of each of these keyword arguments, or what went wrong with each.

    Runs that differ in nothing but the seed are trained in the same steps on a GPU (with `on_cpu`, anywhere: it is
    no faster there). Their random draws, dropout and λ, are then other ones than alone: a run of the same kind, not
    the same run.
    """
    making = [stages(**each) for each in asked]
    outcome: list[Run | Exception] = [TrainingError("not made")] * len(asked)
    ready: dict[int, Ready] = {}
    open_runs = set(range(len(asked)))

    def end(place: int, how: Callable[[], Run]) -> None:
        open_runs.discard(place)
        try:
            outcome[place] = how()
        except Exception as error:
            outcome[place] = error

    try:
        with reusing():  # what is read or tokenised for one is there for all
            for place, run in enumerate(making):
                try:
                    found = begun(run)
                except Exception as error:
                    outcome[place] = error
                    open_runs.discard(place)
                    continue
                if isinstance(found, Run):
                    outcome[place] = found
                    open_runs.discard(place)
                else:
                    ready[place] = found
        fits = _fitted(list(ready.values()), on_cpu=on_cpu)
        for place, fit in zip(ready, fits, strict=True):
            if isinstance(fit, Exception):
                end(place, partial(_thrown, making[place], fit))
            else:
                end(place, partial(ended, making[place], fit))
    except BaseException as error:
        for place in open_runs:  # what was begun is taken back, or left to be continued
            try:
                making[place].throw(error)
            except BaseException as same:
                if same is not error:
                    raise
        raise
    return outcome


def _thrown(making: Any, error: Exception) -> Run:
    making.throw(error)
    raise error


def _fitted(runs: Sequence[Ready], *, on_cpu: bool) -> list[Fit | Exception]:
    if len(runs) > 1 and _alike(runs) and (on_cpu or runs[0].accelerator.device.type == "cuda"):
        before = [{name: value.cpu().clone() for name, value in run.network.state_dict().items()} for run in runs]
        try:
            fits = fit_together(runs)
        except torch.OutOfMemoryError:
            if any(run.guidance.recorder.epochs for run in runs):
                raise
            fits = None
        if fits is not None:
            return fits
        for run, weights in zip(runs, before, strict=True):
            run.network.load_state_dict(weights)
    found: list[Fit | Exception] = []
    for run in runs:
        try:
            found.append(run.fit())
        except Exception as error:
            found.append(error)
    return found


def _alike(runs: Sequence[Ready]) -> bool:
    """Return whether runs can share their steps: everything but the seed is the same, and nothing is to be resumed."""
    first = runs[0]

    def kind(run: Ready) -> Any:
        varied = ("seed", "dynamics", "teacher")
        data = {"train": run.config["data"]["train"]}
        return {**{k: v for k, v in run.config.items() if k not in varied}, "data": data}

    return (
        all(kind(run) == kind(first) for run in runs)
        and not any((run.folder / "checkpoints").is_dir() for run in runs)
        # One of the user's own may look at a batch in ways that only make sense for one run.
        and first.config["recipe"] in RECIPES
        and first.recipe.search is None
        and first.last_epoch is None
        and first.hyper["epochs"] > 0
        # Convolutions of several networks are not one product, and fill a GPU by themselves.
        and not reads_pixels(first.network)
        and first.hyper["accumulate"] == 1
        and first.hyper["patience"] == 0
        and not first.config["gradient_checkpointing"]
        and first.accelerator.num_processes == 1
        and not first.accelerator.trackers
        and all(isinstance(known, Tensor) for run in runs for known in run.guidance.signals.values())
    )


class SideBySide:
    """The guidance of several runs as one: rows are counted on from run to run."""

    def __init__(self, each: Sequence[Guidance]) -> None:
        self.each, self.size = each, len(each[0].data.labels)
        self.labels = each[0].data.labels.repeat(len(each))
        self.recorder = Recorder(len(self.labels), device=self.labels.device)
        self.signals: dict[str, Tensor] = {}
        self._gather()

    def observe(self, step: Step) -> None:
        """Record what a step says about unmixed samples of all runs."""
        assert step.observed is not None
        logits, rows = step.observed
        if self.each[0].record == "training":
            self.recorder.update(logits, self.labels[rows], rows)

    def begin_epoch(self, epoch: int) -> None:
        """Renew the signals of each run."""
        for guidance in self.each:
            guidance.begin_epoch(epoch)
        self._gather()

    def end_epoch(self) -> None:
        """Hand to each run what was recorded of its samples."""
        state = self.recorder.state_dict()
        for run, guidance in enumerate(self.each):
            rows = slice(run * self.size, (run + 1) * self.size)
            if guidance.record == "training":
                own = {name: state[name][rows] for name in ("sums", "notes")}
                guidance.recorder.load_state_dict({**guidance.recorder.state_dict(), **own})
            guidance.end_epoch()

    def _gather(self) -> None:
        for name in self.each[0].signals:
            together = torch.cat([cast(Tensor, guidance.signals[name]) for guidance in self.each])
            if name in self.signals:
                self.signals[name].copy_(together)  # where captured steps read it
            else:
                self.signals[name] = together


def fit_together(runs: Sequence[Ready]) -> list[Fit | Exception] | None:
    """Train several networks in place and leave each with the weights of its best epoch; None: they cannot be.

    Of the time, each is given its share. A run that goes bad is given up; the others go on.
    """
    first, hyper = runs[0], runs[0].hyper
    began = time.monotonic()
    models = [run.network.to(first.accelerator.device) for run in runs]
    failed: dict[int, Exception] = {}
    beginnings = [_begun(run, place, failed) for place, run in enumerate(runs)]
    rates = {name: hyper[name] for name in ("lr", "weight_decay")}
    optimizers = [optimizer_for(hyper["optimizer"], model.parameters(), **rates) for model in models]
    guidance, seeds = SideBySide([run.guidance for run in runs]), [run.hyper["seed"] for run in runs]
    stepper = Stepper(
        models[0],
        first.data,
        first.recipe,
        first.accelerator,
        optimizers[0],
        fill=first.fill,
        seed=seed_for(*seeds),
        clip=hyper["clip"],
        guidance=cast(Guidance, guidance),
        beside=list(zip(models[1:], optimizers[1:], strict=True)),
    )
    assert stepper.lowered is not None
    if not stepper.lowered.agrees(_sample(first)):
        return None
    keepers = [Keeper(run.network, stepper, run.folder, minutes=math.inf) for run in runs]
    for place, (keeper, run, start) in enumerate(zip(keepers, runs, beginnings, strict=True)):
        keeper.run.beside = len(runs) - 1
        if start is not None:
            try:
                begin_run_of(keeper, start, run.dev, run.hyper["select"], math.inf, None)
            except TrainingError as error:
                failed[place] = error
            keeper.run.notes.append(start.note)
        keeper.before = sum(each.seconds for each in beginnings if each is not None)  # all are shared
    layout = partial(epoch_steps_together, first.data, first.recipe, batch_size=hyper["batch_size"], seeds=seeds)
    per_epoch = sum(1 for _ in layout(0, signals=[run.guidance.columns for run in runs]))
    steps = hyper["epochs"] * per_epoch
    rate_at = partial(learning_rate, steps=steps, peak=hyper["lr"], warmup=hyper["warmup"], schedule=hyper["schedule"])
    number = 0
    with interrupts_held() as interrupted:
        for epoch in range(hyper["epochs"]):
            guidance.begin_epoch(epoch)
            models[0].train()
            batches = list(layout(epoch, signals=[run.guidance.columns for run in runs]))
            polled = time.monotonic()
            for place, parts in enumerate(batches):
                stepper.step(parts, number, rate_at((epoch + place / len(batches)) * per_epoch))
                number += 1
                if interrupted():
                    raise Interrupted(f"stopped at step {number} of {steps}, not saved")
                if time.monotonic() - polled >= _POLL:
                    _tell(first, stepper, keepers[0], epoch, number, steps)
                    polled = time.monotonic()
            _end_of_epoch(runs, keepers, stepper, guidance, number, failed)
            _tell(first, stepper, keepers[0], epoch, number, steps)
            stepper.restart()
    seconds = (time.monotonic() - began) / len(runs)
    for keeper in keepers:
        keeper.restore_best()
        keeper.model.eval()
        keeper.run.seconds, keeper.run.notes = seconds, [*keeper.run.notes, *stepper.notes]
    return [failed.get(place) or keeper.run for place, keeper in enumerate(keepers)]


def _begun(run: Ready, place: int, failed: dict[int, Exception]) -> Beginning | None:
    """Return what a run begins with; one that cannot begin is given up."""
    try:
        return None if run.begin is None else run.begin()
    except TrainingError as error:
        failed[place] = error
        return None


def _sample(run: Ready) -> dict[str, Tensor]:
    """Return the inputs of a few training samples."""
    packed = run.data.packed
    rows = torch.arange(1 if packed.counts is not None else min(4, len(packed)), device=run.data.labels.device)
    choices = None if packed.counts is None else int(packed.counts[0])
    return packed.batch(rows, width=packed.width(rows.cpu().numpy()), choices=choices)


def _tell(run: Ready, stepper: Stepper, keeper: Keeper, epoch: int, number: int, steps: int) -> None:
    if run.on_progress is not None:
        rows, losses, _ = stepper.read_all()
        mean = losses[0] / max(1, rows)
        run.on_progress(Progress(epoch + 1, run.hyper["epochs"], number, steps, mean, keeper.rate()))


def _end_of_epoch(
    runs: Sequence[Ready],
    keepers: Sequence[Keeper],
    stepper: Stepper,
    guidance: SideBySide,
    number: int,
    failed: dict[int, Exception],
) -> None:
    """Measure each run's dev set and keep the weights of those whose epoch was their best."""
    rows, losses, bad = stepper.read_all()
    guidance.end_epoch()
    for place, (ready, keeper) in enumerate(zip(runs, keepers, strict=True)):
        run = keeper.run
        run.step = number
        if place in failed:
            continue
        try:
            if bad[place] >= 0:
                raise TrainingError(
                    f"the loss or its gradient stopped being finite at step {bad[place] + 1}. Try a lower --lr."
                )
            select, loss = ready.hyper["select"], losses[place] / max(1, rows)
            entry, worth = epoch_entry(keeper.model, ready.dev, ready.accelerator, select, run=run, loss=loss)
        except TrainingError as error:
            failed[place] = error
            continue
        entry["seconds"] = round(keeper.seconds() / len(runs), 3)
        run.history.append(entry)
        run.epoch += 1
        keeper.judge(worth)
        keeper.log()
