"""From files to data sets that are known to fit together, with what a user should know about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.data import Examples, hygiene_lines, read_examples, split_examples
from calmix.errors import InputError
from calmix.training.reusing import reused

__all__ = ["ClassWeights", "Sets", "Source", "check_learnable", "class_weights_of", "prepare_sets"]

# Below so many rows, a calibration error is noise for the most part.
_FEW = 200

Source = str | Path | Examples
ClassWeights = str | Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Sets:
    """Everything a run reads: to learn from, to choose by, and to be judged on."""

    train: Examples
    dev: Examples
    guard: Examples | None = None
    """Labelled rows that choose neither epoch nor temperature: guarantees are made on them."""
    judged: dict[str, Examples] = field(default_factory=dict)
    """`test` and `ood-NAME`: looked at once, at the end."""
    notes: list[str] = field(default_factory=list)

    def named(self) -> dict[str, Examples]:
        """Return all sets by name."""
        guard = {} if self.guard is None else {"guard": self.guard}
        return {"train": self.train, "dev": self.dev, **guard, **self.judged}


def prepare_sets(
    train: Source,
    *,
    dev: Source | None,
    test: Source | None,
    ood: Mapping[str, Source],
    guard: bool,
    dev_fraction: float,
    seed: int,
    columns: Mapping[str, str | None],
) -> Sets:
    """Return all data sets of a run, read and checked; without a dev set, one is split off the training set."""
    learn = _read(train, columns)
    names = learn.label_names
    check_learnable(learn)
    notes = []
    if dev is None:
        learn, choose = split_examples(learn, dev_fraction=dev_fraction, seed=seed)
        notes.append(f"dev: {len(choose)} rows split off the training set ({len(learn)} stay), stratified by label")
    else:
        choose = _read(dev, columns, like=learn)
    kept = None
    if guard:
        choose, kept = split_examples(choose, dev_fraction=0.5, seed=seed)
        notes.append(f"guard: {len(kept)} rows of the dev data kept for the guarantee ({len(choose)} stay)")
    if len(choose) < _FEW:
        notes.append(f"dev: {len(choose)} rows are few to fit a temperature on: take the scaled figures as rough")
    judged = {} if test is None else {"test": _read(test, columns, like=learn)}
    judged |= {f"ood-{name}": _read(source, columns, like=learn) for name, source in ood.items()}
    others = {"dev": choose, **judged}
    seen = (learn.digest(), *((name, examples.digest()) for name, examples in others.items()))
    notes += reused("hygiene", seen, lambda: hygiene_lines(learn, others))
    missing = [names[k] for k in np.flatnonzero(np.bincount(learn.labels, minlength=len(names)) == 0)] if names else []
    if missing:
        notes.append(f"train: no row left with label {', '.join(missing)}")
    return Sets(learn, choose, kept, judged, notes)


def check_learnable(examples: Examples) -> None:
    """Refuse data to train on whose rows are not all labelled, or all alike."""
    check_labelled(examples)
    if examples.kind != "choices" and len(examples.label_names) < 2:
        where, only = examples.source or "the training set", examples.label_names[0]
        raise InputError(f"{where}: every row has the same label, {only!r}: nothing to learn")


def check_labelled(examples: Examples) -> None:
    """Refuse data with rows that have no label."""
    if (examples.labels < 0).any():
        raise InputError(f"{examples.source or 'the data'}: has unlabelled rows")


def class_weights_of(examples: Examples, weights: ClassWeights | None) -> NDArray[np.float64] | None:
    """Return a weight for each class with mean 1 over the training rows, so that the learning rate keeps its meaning.

    `balanced` gives each class the same total; a mapping gives weights by name, 1 for the others.
    """
    if weights is None:
        return None
    if examples.kind == "choices":
        raise InputError("class weights are for classes: multiple-choice data has none")
    names = examples.label_names
    share = np.bincount(examples.labels, minlength=len(names)) / len(examples)
    if examples.targets is not None:
        share = examples.targets.mean(axis=0)
    if weights == "balanced":
        found = np.where(share > 0, 1 / np.where(share > 0, share, 1), 0.0)
    elif isinstance(weights, str):
        raise InputError(f"class weights are 'balanced' or one number per label, not {weights!r}")
    else:
        unknown = set(weights) - set(names)
        if unknown:
            raise InputError(f"class weights name {min(unknown)!r}, which is not a label (they are {', '.join(names)})")
        if any(not 0 <= w < float("inf") for w in weights.values()):
            raise InputError("class weights must be numbers, 0 or above")
        found = np.array([float(weights.get(name, 1.0)) for name in names])
    mean = float((found * share).sum())
    if mean == 0:
        raise InputError("class weights are 0 for every label that occurs")
    return np.asarray(found / mean)


def _read(source: Source, columns: Mapping[str, str | None], like: Examples | None = None) -> Examples:
    if isinstance(source, Examples):
        examples = source
        check_labelled(examples)
        if like is not None and examples.label_names != like.label_names:
            raise InputError(
                f"labels differ: {', '.join(examples.label_names)} here, {', '.join(like.label_names)} in training"
            )
    else:
        known: dict[str, Any] = dict(columns)
        if like is not None and like.label_names:
            known["label_names"] = like.label_names
        examples = read_examples(source, **known)
    if like is not None and examples.kind != like.kind:
        raise InputError(f"{examples.source}: holds {examples.kind} data, the training set {like.kind} data")
    return examples
