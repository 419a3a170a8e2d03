"""From a task to its data sets, every hole filled by the task's own rules."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from calmix.data.examples import Examples
from calmix.data.files import COMPRESSIONS
from calmix.data.label_twins import merged_labels, merging_line, settled_labels
from calmix.data.origin import Origin, closest, listed, shown
from calmix.data.reading import read_examples
from calmix.data.splits import split_examples
from calmix.data.tables import FORMATS
from calmix.data.tasks import Part, Task
from calmix.errors import CalmixWarning, InputError

__all__ = ["TaskSets", "find_inside", "gather", "has_inside", "sampled"]

# Splits and draws belong to the task, not to a run: every seed trains on the same rows.
_SEED = 0
_WAYS = "merge_labels = true among its keys makes one of each, the commonest spelling; false trains them as different"


@dataclass(frozen=True, eq=False)
class TaskSets:
    """The data sets of a task, ready to train on."""

    train: Examples
    dev: Examples
    test: Examples
    ood: Mapping[str, Examples]


def gather(task: Task, folder: Path | None) -> TaskSets:
    """Return a task's data, from `folder`, or from the hub where there is none.

    Labels are renamed, and twins merged, as the task says, and those of dev, test and other domains must be among the
    training set's. Without a dev set, one is cut from the test set or the training set (a tenth), stratified by label.
    """
    folder = Path(str(files("calmix.data").joinpath("corpus"))) if task.shipped else folder
    train, renamed = settled_labels(_read(task.train, folder), task.merge_labels, ways=_WAYS)
    if renamed:
        _warn(merging_line(train.source, renamed))
    like = partial(_like, train=train, merge=task.merge_labels is True)
    test = like(_read(task.test, folder))
    if task.dev is not None and not (folder is None and not task.dev.hub):
        dev = like(_read(task.dev, folder))
    elif task.dev_from_test:
        if task.dev_from_test >= len(test):
            raise InputError(f"dev_from_test is {task.dev_from_test}, the test set has {len(test)} rows")
        test, dev = split_examples(test, dev_fraction=task.dev_from_test / len(test), seed=_SEED)
    else:
        train, dev = split_examples(train, dev_fraction=0.1, seed=_SEED)
    ood = {name: like(_read(part, folder)) for name, part in task.ood.items() if folder or part.hub}
    if missing := [name for name in task.ood if name not in ood]:
        _warn(f"{task.name}: {listed(missing)} is not on the hub and left out; --data says where files are")
    if task.rows:
        train = sampled(train, task.rows, _SEED)
    if task.test_rows:
        test = sampled(test, task.test_rows, _SEED)
        ood = {name: sampled(examples, task.test_rows, _SEED) for name, examples in ood.items()}
    return TaskSets(train, dev, test, ood)


def sampled(examples: Examples, rows: int, seed: int) -> Examples:
    """Return `rows` examples drawn at random, in the order they had; all where there are no more."""
    if rows >= len(examples):
        return examples
    chosen = np.random.default_rng([seed, rows]).choice(len(examples), rows, replace=False)
    return examples.take(np.sort(chosen))


def has_inside(folder: Path, name: str) -> bool:
    """Return whether there is a file of this name, its ending left out or not."""
    return _found(folder, name) is not None


def find_inside(folder: Path, name: str) -> Path:
    """Return the file, or folder of images, of this name, its ending left out or not, which must lie inside the folder,
    links followed."""
    if path := _found(folder, name):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path}: leads out of the data folder")
        return path
    raise InputError(f"{folder / name}: no such file (looked for .jsonl.xz, .jsonl, .csv, .parquet and others)")


def _found(folder: Path, name: str) -> Path | None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"{name}: files of a task are named relative to the data folder, and stay inside it")
    endings = ["", *(f"{kind}{packed}" for kind in FORMATS for packed in ("", *COMPRESSIONS))]
    if (folder / name).is_dir():
        return folder / name
    return next((path for ending in endings if (path := folder / f"{name}{ending}").is_file()), None)


def _warn(line: str) -> None:
    warnings.warn(line, CalmixWarning, stacklevel=3)


def _read(part: Part, folder: Path | None) -> Examples:
    columns: dict[str, Any] = dict(part.columns if folder is not None else part.hub_columns or part.columns)
    if folder is not None:
        examples = read_examples(find_inside(folder, part.file), split=part.split, **columns)
    elif part.hub:
        examples = read_examples(part.hub, split=part.split, labelled=None, several=part.several, **columns)
        # The hub marks what annotators did not agree on with no label.
        known = np.flatnonzero(examples.labels >= 0)
        if len(known) < len(examples):
            _warn(f"{part.hub}: {len(examples) - len(known)} of {len(examples)} rows have no label and are left out")
            examples = examples.take(known)
    else:
        raise InputError(f"{part.file} is not on the hub; give the folder that has it (--data or CALMIX_DATA)")
    return examples if examples.kind == "choices" else _relabelled(examples, part)


def _relabelled(examples: Examples, part: Part) -> Examples:
    """Return examples with the task's names of labels; of several labels in a row one is drawn."""
    new_name = {old: new for new, olds in part.labels.items() for old in olds}
    if not (new_name or part.several):
        return examples
    names = [name.split(part.several) if part.several else [name] for name in examples.label_names]
    draws = np.random.default_rng([_SEED, crc32(part.file.encode())]).random(len(examples))
    drawn = [names[k][int(u * len(names[k]))] for k, u in zip(examples.labels, draws, strict=True)]
    found = [new_name.get(name, name) for name in drawn]
    label_names = tuple(sorted(set(found)))
    where = {name: k for k, name in enumerate(label_names)}
    labels = np.array([where[name] for name in found], dtype=np.int64)
    return replace(examples, labels=labels, label_names=label_names, targets=None)


def _like(examples: Examples, train: Examples, *, merge: bool) -> Examples:
    """Return examples with the class indices of the training set; labels merged where its are."""
    if examples.kind != train.kind:
        raise InputError(f"{examples.source}: holds {examples.kind} data, {train.source} {train.kind} data")
    if examples.kind == "choices" or examples.label_names == train.label_names:
        return examples
    names = train.label_names
    if merge:
        examples, renamed = merged_labels(examples, known=names)
        if renamed:
            _warn(merging_line(examples.source, renamed))
    for name in examples.label_names:
        if name not in names:
            raise Origin(examples.source).error(
                f"label {shown(name)} is not among the training set's{closest(name, names)} (known: {listed(names)}); "
                "rename it in the task's labels"
            )
    moved = np.array([names.index(name) for name in examples.label_names], dtype=np.int64)
    return replace(examples, labels=moved[examples.labels], label_names=names, targets=None)
