"""From files to data sets that are known to fit together, with what a user should know about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calmix.data import Examples, fold_examples, hygiene_lines, read_examples, split_examples
from calmix.data.columns import with_usual
from calmix.data.hygiene import dev_lines
from calmix.data.label_twins import merged_labels, merging_line, settled_labels
from calmix.data.origin import few, shown
from calmix.data.reusing import reused
from calmix.data.weighting import ClassWeights, class_weights_of
from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.training.teachers import Teachers

__all__ = ["FOLDS", "ClassWeights", "Sets", "Source", "check_learnable", "class_weights_of", "prepare_sets"]

# What is split off where nobody says how much.
_DEV_FRACTION = 0.1
# Fewer rows than these in all, or of a class (unless they are many all the same), are not split.
_FEW_ROWS, _FEW_OF_A_CLASS, _NOT_FEW = 1_000, 10, 5_000
FOLDS = 3
"""Parts of so few rows that none are set aside: the networks trained on two of three cost two runs more."""

Source = str | Path | Examples


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
    columns: dict[str, str] = field(default_factory=dict)
    """Which columns were named for what of an example."""
    folds: NDArray[np.int64] | None = None
    """Which fold each training row is in, −1 for none: `dev` are then the training rows that are in one."""

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
    dev_fraction: float | None,
    folds: int | None = None,
    fold_if_few: bool = False,
    seed: int,
    columns: Mapping[str, str | None],
    teachers: "Teachers | None" = None,
    merge_labels: bool | None = None,
) -> Sets:
    """Return all data sets of a run, read and checked; without a dev set, one is split off the training set.

    With `folds` nothing is split off: each row will be predicted by a network that learnt from the others. So it is,
    with `fold_if_few`, where a split would leave too few dev rows and nobody asked for one. With teachers, rows of the
    training set need no label, and columns that are not named are looked for under the names they had in the first
    one's training. Labels that differ in case or blanks alone are refused, unless
    `merge_labels` says that they are one (True), in all sets, or different ones (False).
    """
    usual = {} if teachers is None else teachers.classifiers[0].columns
    reads: dict[str, Any] = {**columns, "usual": usual, "spelt_alike": merge_labels is True}
    learn = _read(train, reads, unlabelled=teachers is not None)
    learn, renamed = settled_labels(learn, merge_labels, known=() if teachers is None else teachers.label_names)
    notes = [merging_line("train", renamed)] if renamed else []
    unlabelled = int((learn.labels < 0).sum())
    if unlabelled and teachers is not None:
        learn = _with_classes(learn, teachers.label_names)
        notes.append(f"train: {unlabelled} of {len(learn)} rows have no label and learn from the teacher alone")
    names = learn.label_names
    if not unlabelled:
        check_learnable(learn)
    if teachers is not None:
        teachers.check(learn)
    if dev is not None and dev_fraction is not None:
        raise InputError("give --dev or --dev-fraction, not both: with --dev, nothing is split off TRAIN")
    of_rows = None
    if folds:
        _check_folds(dev, dev_fraction, guard, teachers)
    elif folds is None and fold_if_few and dev is None and dev_fraction is None and not guard and teachers is None:
        folds = FOLDS if _has_few(learn) and _can_fold(learn) else None
    if folds:
        of_rows = fold_examples(learn, folds, seed=seed)
        choose = learn.take(np.flatnonzero(of_rows >= 0))
        notes.append(
            f"dev: none is split off so few rows: {folds} networks learn from {folds - 1} of {folds} parts each, and "
            "what they say of the rest gives the temperature (--dev-fraction splits some off)"
        )
    elif dev is None:
        fraction = _DEV_FRACTION if dev_fraction is None else dev_fraction
        asked = fraction * len(learn)
        learn, choose = _split(learn, fraction, seed)
        more = f", more than the {fraction:.0%} asked for: each label has one" if len(choose) > 2 * asked + 1 else ""
        notes.append(
            f"dev: {len(choose)} rows split off the training set ({len(learn)} stay), stratified by label{more}"
        )
    else:
        choose = _read(dev, reads, like=learn, name="dev", notes=notes)
    kept = None
    if guard:
        choose, kept = split_examples(choose, dev_fraction=0.5, seed=seed)
        notes.append(f"guard: {len(kept)} rows of the dev data kept for the guarantee ({len(choose)} stay)")
    notes += dev_lines(learn, choose)
    looked_at = ({} if test is None else {"test": test}) | {f"ood-{name}": source for name, source in ood.items()}
    judged = {name: _read(source, reads, like=learn, name=name, notes=notes) for name, source in looked_at.items()}
    others = judged if folds else {"dev": choose, **judged}
    seen = (learn.digest(), *((name, examples.digest()) for name, examples in others.items()))
    notes += reused("hygiene", seen, lambda: hygiene_lines(learn, others))
    found = learn.labels[learn.labels >= 0]
    missing = [names[k] for k in np.flatnonzero(np.bincount(found, minlength=len(names)) == 0)] if names else []
    if missing and len(found):
        notes.append(f"train: no row left with label {few([shown(name) for name in missing])}")
    known = with_usual(columns, usual, list(usual.values()))
    named = {role: name for role, name in known.items() if name is not None}
    return Sets(learn, choose, kept, judged, notes, named, of_rows)


def _check_folds(dev: Source | None, dev_fraction: float | None, guard: bool, teachers: "Teachers | None") -> None:
    if dev is not None or dev_fraction is not None:
        raise InputError("--folds take the place of dev data: give them, --dev or --dev-fraction")
    if guard:
        raise InputError("a guarantee needs rows that no network has learnt from: give --dev, not --folds")
    if teachers is not None:
        raise InputError("--folds are not for students of a teacher: give --dev or --dev-fraction")


def _has_few(examples: Examples) -> bool:
    """Return whether a dev set would be too small to be of use, or take too much away: each class has a row there."""
    rows, classes = len(examples), len(examples.label_names)
    return rows < _FEW_ROWS or rows < min(_FEW_OF_A_CLASS * classes, _NOT_FEW)


def _can_fold(examples: Examples) -> bool:
    try:
        fold_examples(examples, FOLDS)
    except InputError:
        return False
    return True


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


def _with_classes(examples: Examples, names: tuple[str, ...]) -> Examples:
    """Return examples whose labels, as far as they have any, are among these classes, in their order."""
    where = {name: position for position, name in enumerate(names)}
    if not set(examples.label_names) <= set(names):
        raise InputError(
            f"labels differ: {', '.join(examples.label_names)} in the training set, {', '.join(names)} in the teacher"
        )
    order = np.array([*(where[name] for name in examples.label_names), -1], dtype=np.int64)
    targets = None
    if examples.targets is not None:
        targets = np.zeros((len(examples), len(names)))
        targets[:, order[:-1]] = examples.targets
    labels = examples.labels if examples.kind == "choices" else order[examples.labels]  # -1 finds the last entry
    return replace(examples, labels=labels, label_names=names, targets=targets)


def _split(examples: Examples, fraction: float, seed: int) -> tuple[Examples, Examples]:
    """Return a training and a dev set; only rows with a label can be in the latter."""
    labelled = np.flatnonzero(examples.labels >= 0)
    if len(labelled) == len(examples):
        return split_examples(examples, dev_fraction=fraction, seed=seed)
    if len(labelled) == 0:
        where = examples.source or "the training set"
        raise InputError(f"{where}: no row has a label, to choose the epoch and the temperature by: give --dev")
    _, aside = split_examples(examples.take(labelled), dev_fraction=fraction, seed=seed)
    gone = set(aside.ids)
    return examples.take([row for row, id in enumerate(examples.ids) if id not in gone]), aside


def _read(
    source: Source,
    reads: Mapping[str, Any],
    like: Examples | None = None,
    *,
    name: str = "train",
    unlabelled: bool = False,
    notes: list[str] | None = None,
) -> Examples:
    """Return one of the data sets; where labels are merged, those of others than the training set as it spells them."""
    if isinstance(source, Examples):
        examples = source
        if not unlabelled:
            check_labelled(examples)
        examples = _merged(examples, reads, like, name, notes)
        if like is not None and examples.label_names != like.label_names:
            raise InputError(
                f"labels differ: {', '.join(examples.label_names)} here, {', '.join(like.label_names)} in training"
            )
    else:
        known: dict[str, Any] = {**reads, "labelled": None if unlabelled else True}
        known["split"] = name if name in ("train", "dev") else "test"
        if like is not None and like.label_names:
            known["label_names"] = like.label_names
        examples = _merged(read_examples(source, **known), reads, like, name, notes)
    if like is not None and examples.kind != like.kind:
        raise InputError(f"{examples.source}: holds {examples.kind} data, the training set {like.kind} data")
    return examples


def _merged(
    examples: Examples, reads: Mapping[str, Any], like: Examples | None, name: str, notes: list[str] | None
) -> Examples:
    if like is None or not reads["spelt_alike"]:
        return examples
    examples, renamed = merged_labels(examples, known=like.label_names)
    if renamed and notes is not None:
        notes.append(merging_line(name, renamed))
    return examples
