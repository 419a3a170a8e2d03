"""A run in two halves, prepared and finished, with its training in between: alone, or beside others."""

import json
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from calmix.errors import CalmixWarning
from calmix.mixing import Recipe
from calmix.models import Packed, Pixels
from calmix.training.arguments import check_arguments
from calmix.training.batches import TrainingSet
from calmix.training.cutting import retried
from calmix.training.folder import FinishedRun
from calmix.training.guiding import Guidance
from calmix.training.keeping import Fit
from calmix.training.launching import processes
from calmix.training.loop import Beginning, Progress, fit

__all__ = ["Ready", "Run", "alone", "begun", "ended", "finished_run"]

P = ParamSpec("P")


@dataclass(frozen=True)
class Run:
    """A finished run: where it is and what came out."""

    folder: Path
    metrics: dict[str, Any] = field(repr=False)

    @property
    def model(self) -> Path:
        """The calibrated checkpoint: `calmix.load` and `from_pretrained` both read it. A lean run has none."""
        return self.folder / "model"


@dataclass(frozen=True, eq=False)
class Ready:
    """A run with everything prepared: what is left is to train, then to measure and to write."""

    network: nn.Module
    data: TrainingSet
    recipe: Recipe
    guidance: Guidance
    accelerator: Accelerator
    fill: Mapping[str, int]
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None
    folder: Path
    config: Mapping[str, Any]
    hyper: Mapping[str, Any]
    saving: Mapping[str, Any]
    on_progress: Callable[[Progress], None] | None
    on_note: Callable[[str], None] | None
    begin: Callable[[], Beginning | None] | None = None
    """Gives the network the head that it begins with; None where that is random."""
    last_epoch: int | None = None
    """After which epoch to stop, where folds have chosen that."""

    def fit(self) -> Fit:
        """Train the network and leave it with the weights of its best epoch."""
        return fit(
            self.network,
            self.data,
            self.recipe,
            self.guidance,
            accelerator=self.accelerator,
            fill=self.fill,
            dev=self.dev,
            out=self.folder,
            begin=self.begin,
            last_epoch=self.last_epoch,
            on_progress=self.on_progress,
            on_note=self.on_note,
            **self.hyper,
            **self.saving,
        )


def finished_run(folder: Path) -> Run:
    """Return the finished run that is in a folder."""
    return Run(folder, json.loads((folder / "metrics.json").read_text(encoding="utf-8")))


def alone(stages: Callable[P, Generator[Ready, Fit, Run]]) -> Callable[P, Run]:
    """Return the stages of a run as one function: prepare, train, finish.

    A run that is there already, finished, is returned as it is, with a note.
    """

    @wraps(stages)
    def train(*args: P.args, **asked: P.kwargs) -> Run:
        check_arguments("train", shown, args, asked)
        settings: Any = dict(asked)
        if settings.get("on_note") is not None:
            settings["on_note"] = said_once(settings["on_note"])
        return retried(lambda: once(*args, **settings))

    def once(*args: P.args, **asked: P.kwargs) -> Run:
        making = stages(*args, **asked)
        try:
            ready = begun(making)
        except FinishedRun as finished:
            if processes().is_main_process:
                tell: Any = asked.get("on_note") or warned
                tell(str(finished))
            return finished_run(finished.folder)
        if isinstance(ready, Run):
            return ready
        try:
            done = ready.fit()
        except BaseException as error:
            making.throw(error)  # so that what was begun is taken back
            raise
        return ended(making, done)

    def warned(line: str) -> None:
        warnings.warn(line, CalmixWarning, stacklevel=6)

    def said_once(note: Any) -> Any:
        told: set[str] = set()

        def tell(line: str) -> None:
            if line not in told:
                told.add(line)
                note(line)

        return None if note is None else tell

    train.__name__ = train.__qualname__ = "train"
    # What its help shows: it is called by people who do not know of stages.
    shown = signature(stages).replace(return_annotation=Run)
    train.__signature__, train.__annotations__ = shown, {**stages.__annotations__, "return": Run}  # type: ignore[attr-defined]
    return train


def begun(making: Generator[Ready, Fit, Run]) -> Ready | Run:
    """Return a run that is ready to be trained, or, of a dry run, what it would cost."""
    try:
        return next(making)
    except StopIteration as stop:
        found: Run = stop.value
        return found


def ended(making: Generator[Ready, Fit, Run], done: Fit) -> Run:
    """Return the finished run of a training that is done."""
    try:
        making.send(done)
    except StopIteration as stop:
        found: Run = stop.value
        return found
    raise AssertionError("a run has two halves")
