"""A dev set for few rows: each is predicted by a network that was trained on the others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calmix.calibration import Temperature
from calmix.data import Examples
from calmix.mixing import Recipe
from calmix.models import Augment
from calmix.training.batches import training_set
from calmix.training.evaluating import json_safe
from calmix.training.guiding import Guidance, Record
from calmix.training.head_start import Start, begin_head
from calmix.training.keeping import Fit
from calmix.training.launching import accelerator_for, from_main, processes
from calmix.training.loop import Progress, fit
from calmix.training.networks import Loaded
from calmix.training.preparing import ClassWeights, Sets, class_weights_of
from calmix.training.selecting import Selection, dev_figures, joint
from calmix.training.state import latest, save_state

__all__ = ["FoldLogits", "FoldTraining", "cross_fit", "folds_of_head"]

# What temperature few rows are taken to need, until they say otherwise: a network that knows its training rows by heart
# has mostly twice the confidence it should have; a fitted head is regularised already.
_EXPECTED, _EXPECTED_OF_HEAD = 2.0, 1.0

# Trains on the first examples and says, by epoch, what the network makes of the second.
TrainFold = Callable[[Examples, Examples, int], dict[int, NDArray[np.float32]]]


@dataclass(frozen=True, eq=False)
class FoldLogits:
    """What networks that had not learnt from them said of the training rows, after each epoch."""

    by_epoch: dict[int, NDArray[np.float32]]
    labels: NDArray[np.int64]

    def expected(self, epoch: int) -> float:
        """Return the temperature to expect of an epoch's network."""
        return _EXPECTED if epoch else _EXPECTED_OF_HEAD

    def best_epoch(self, select: Selection) -> int:
        """Return the last epoch, or 0 if that was clearly better: by more than two standard errors, over rows.

        Nothing in between: in the middle of a run networks change fast, and one that learns from all rows is further
        there than those that said this. At the end all have learnt what there is.
        """
        last = max(self.by_epoch)
        if last == 0 or 0 not in self.by_epoch:
            return last
        lost = self._losses(last, select) - self._losses(0, select)
        return 0 if _clearly_above(lost) else last

    def _losses(self, epoch: int, select: Selection) -> NDArray[np.float64]:
        """Return each row's loss, as epochs are chosen by."""
        rows, logits = np.arange(len(self.labels)), self.by_epoch[epoch]
        if select == "none":
            return np.zeros(len(rows))
        if select in ("accuracy", "mcc"):
            return np.asarray(logits.argmax(axis=1) != self.labels, dtype=np.float64)
        scaled = Temperature(1.0)
        if select == "nll-ts":
            scaled = Temperature.fit(logits, self.labels, expected=self.expected(epoch))
        return np.asarray(-np.log(np.asarray(scaled(logits))[rows, self.labels].clip(1e-30)))

    def told_in(self, done: Fit) -> Fit:
        """Return a finished run whose history has, for each epoch, the figures of the folds in the place of dev's."""
        history = []
        for entry in done.history:
            logits = self.by_epoch.get(entry["epoch"])
            figures: dict[str, Any] = {}
            if logits is not None:
                dev = dev_figures(logits, self.labels, expected=self.expected(entry["epoch"]))
                figures = {"dev": json_safe(dev), "joint": joint(logits, self.labels)}
            history.append({**entry, **figures})
        return replace(done, history=history)


def _clearly_above(differences: NDArray[np.float64]) -> bool:
    return float(differences.mean()) > 2 * float(differences.std()) / math.sqrt(len(differences))


def cross_fit(examples: Examples, folds: NDArray[np.int64], train_fold: TrainFold) -> FoldLogits:
    """Return what is said of each row in a fold by a network that is trained on all rows but that fold's."""
    told: dict[int, NDArray[np.float32]] = {}
    judged = np.flatnonzero(folds >= 0)
    for fold in range(int(folds.max()) + 1):
        inside = np.flatnonzero(folds[judged] == fold)
        found = train_fold(examples.take(np.flatnonzero(folds != fold)), examples.take(judged[inside]), fold)
        for epoch, logits in found.items():
            width = logits.shape[1]
            if epoch not in told:
                told[epoch] = np.full((len(judged), width), -np.inf, dtype=np.float32)
            elif width > told[epoch].shape[1]:  # of multiple choice, a row with more choices than any before
                more = np.full((len(judged), width - told[epoch].shape[1]), -np.inf, dtype=np.float32)
                told[epoch] = np.concatenate([told[epoch], more], axis=1)
            told[epoch][inside, :width] = logits
    return FoldLogits(told, examples.labels[judged])


def folds_of_head(done: Fit, sets: Sets) -> FoldLogits | None:
    """Return what heads alone said of rows that they were not fitted to, if a run was asked for nothing more."""
    if done.fold_logits is None or sets.folds is None:
        return None
    return FoldLogits({0: done.fold_logits[sets.folds >= 0]}, sets.dev.labels)


@dataclass(frozen=True, eq=False)
class FoldTraining:
    """How a network is trained that is to predict the rows it has not learnt from.

    It makes as many updates as the one that learns from all rows, in smaller batches: a network becomes surer with
    each, and the temperature is that one's. What it said is kept in the `folder` of the run, which need not ask again
    if it is interrupted.
    """

    folder: Path
    load: Callable[[Mapping[str, Examples]], Loaded]
    method: Recipe
    hyper: Mapping[str, Any]
    start: Start
    class_weights: ClassWeights | None
    augment: Augment
    record: Record
    precision: str
    on_progress: Callable[[Progress], None] | None
    tell: Callable[[str], None] | None

    def __call__(self, learn: Examples, judge: Examples, fold: int) -> dict[int, NDArray[np.float32]]:
        """Return what a network that learns from the first examples says of the second, after each epoch."""
        place = self.folder / "checkpoints" / f"fold-{fold + 1}"
        kept = from_main(partial(latest, place))
        if kept is not None:
            return {int(epoch): logits.numpy() for epoch, logits in kept[0]["logits"].items()}
        if self.tell is not None:
            self.tell(f"fold {fold + 1}: {len(learn):,} rows to learn from, {len(judge):,} to predict")
        told = self._trained(learn, judge)
        if processes().is_main_process:
            said = {str(epoch): torch.from_numpy(logits) for epoch, logits in told.items()}
            save_state(place, 0, {"logits": said}, {})
        return told

    def _trained(self, learn: Examples, judge: Examples) -> dict[int, NDArray[np.float32]]:
        method, hyper = (
            self.method,
            {**self.hyper, "patience": 0, "batch_size": self._batch_size(len(learn), len(judge))},
        )
        learn = learn if method.prepare is None else method.prepare(learn)
        accelerator = accelerator_for(self.precision, (), Path())
        loaded = self.load({"train": learn, "dev": judge})
        network, dev = loaded.network, (loaded.packed["dev"], judge.labels)
        weights = class_weights_of(learn, self.class_weights)
        data = training_set(learn, loaded.packed["train"], weights, augment=self.augment).to(accelerator.device)
        fit_head = partial(
            begin_head,
            network,
            data,
            dev=dev,
            accelerator=accelerator,
            trained=loaded.trained_head,
            set_inner=loaded.reads_mean,
            choose_by_dev=False,
            precision=self.precision,
        )
        # Dynamics of another run are of a network that knew these rows: each guides itself.
        of = {"online": method.guide is not None, "record": self.record, "seed": self.hyper["seed"]}
        guidance = Guidance(method, network, data, accelerator, **of)
        told: dict[int, NDArray[np.float32]] = {}
        fit(
            network,
            data,
            method,
            guidance,
            accelerator=accelerator,
            fill=loaded.fill,
            dev=dev,
            begin=fit_head if self.start.head == "fitted" else None,
            on_dev=told.__setitem__,
            on_progress=self.on_progress,
            cut_with=self.folder,
            **hyper,
        )
        return told

    def _batch_size(self, learnt: int, judged: int) -> int:
        """Return how large the batches are that the rows learnt from make as many of as all rows do in an epoch."""
        return math.ceil(learnt / math.ceil((learnt + judged) / int(self.hyper["batch_size"])))
