"""Tasks as data: which files are learnt from, chosen by and judged on, and what their labels are called."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any

from calmix.data.origin import closest
from calmix.errors import InputError

__all__ = ["Part", "Task", "builtin_tasks", "checked_keys", "checked_table", "checked_truth", "parse_task"]

_COLUMNS = ("text", "text_b", "choices", "label", "id", "votes")
_FIGURES = ("accuracy", "mcc", "macro_f1")


@dataclass(frozen=True)
class Part:
    """One data set of a task: a file in the data folder, or a hub data set for those who have none."""

    file: str
    hub: str = ""
    split: str = "train"
    columns: Mapping[str, str] = field(default_factory=dict)
    hub_columns: Mapping[str, str] = field(default_factory=dict)
    """The same of the hub's data set, where its columns are called otherwise."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """New name → the labels that become it; others keep their names."""
    several: str = ""
    """What stands between the labels of a row that has several: one of them is drawn."""


@dataclass(frozen=True)
class Task:
    """What is trained on, and what is judged in and out of domain."""

    name: str
    train: Part
    test: Part
    dev: Part | None = None
    ood: Mapping[str, Part] = field(default_factory=dict)
    dev_from_test: int = 0
    """Without `dev`: so many rows of the test set become it; 0 takes a tenth of the training set instead."""
    rows: int = 0
    """Train on so many rows, drawn once; 0 takes all."""
    samples: int = 0
    """Train on so many rows, drawn anew for each seed; 0 takes all."""
    test_rows: int = 0
    """Judge on so many rows of each data set at most, drawn once; 0 takes all."""
    figure: str = "accuracy"
    """What stands for accuracy in tables."""
    shipped: bool = False
    """Its files come with calmix."""
    merge_labels: bool | None = None
    """Of labels that differ in case or blanks alone, make one, or train them as different; None refuses such data."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings of this task."""


def builtin_tasks() -> dict[str, dict[str, Any]]:
    """Return the papers' tasks and the shipped one, as their file has them; `like` another one is written out."""
    tasks = tomllib.loads(files("calmix.data").joinpath("tasks.toml").read_text(encoding="utf-8"))
    for name, values in tasks.items():
        if "like" in values:
            tasks[name] = tasks[values.pop("like")] | values
    return tasks


def parse_task(name: str, values: Mapping[str, Any], where: str) -> Task:
    """Return a task from its TOML table; `where` names the table in messages."""
    known = [f.name for f in fields(Task) if f.name != "name"] + ["columns", "labels", "several"]
    checked_keys(values, known, where)
    for part in ("train", "test"):
        if part not in values:
            raise InputError(f"{where}: says nothing about {part!r}: name its file")
    common = {key: values[key] for key in ("columns", "labels", "several") if key in values}
    parts: dict[str, Any] = {
        part: _part(values[part], common, f"{where}.{part}") for part in ("train", "dev", "test") if part in values
    }
    ood = checked_table(values.get("ood", {}), f"{where}.ood")
    for key in ood:
        if not all(c.isalnum() or c in "-_." for c in key) or key.startswith("."):
            raise InputError(f"{where}.ood: {key!r} must be letters, digits, '-', '_' or '.' (it names files)")
    # What another domain calls its labels is its own affair; how columns are called is told alike.
    outside = {key: value for key, value in common.items() if key != "several"}
    judged = {key: _part(value, outside, f"{where}.ood.{key}") for key, value in ood.items()}
    whole: dict[str, Any] = {
        key: _whole(values.get(key, 0), f"{where}.{key}") for key in ("dev_from_test", "rows", "samples", "test_rows")
    }
    if "dev" in parts and whole["dev_from_test"]:
        raise InputError(f"{where}: has dev and dev_from_test; give one")
    if whole["rows"] and whole["samples"]:
        raise InputError(f"{where}: has rows (drawn once) and samples (drawn for each seed); give one")
    figure = values.get("figure", "accuracy")
    if figure not in _FIGURES:
        raise InputError(f"{where}.figure: is one of {', '.join(_FIGURES)}, not {figure!r}")
    training = dict(checked_table(values.get("training", {}), f"{where}.training"))
    shipped = checked_truth(values.get("shipped", False), f"{where}.shipped")
    merge = checked_truth(values["merge_labels"], f"{where}.merge_labels") if "merge_labels" in values else None
    return Task(
        name, **parts, ood=judged, **whole, figure=figure, shipped=shipped, training=training, merge_labels=merge
    )


def checked_keys(values: Any, known: list[str], where: str) -> None:
    """Refuse what is no table, and a key that means nothing here, with the one that was probably meant."""
    for key in checked_table(values, where):
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{closest(key, known)} (known: {', '.join(known)})")


def _part(value: Any, common: Mapping[str, Any], where: str) -> Part:
    values = {"file": value} if isinstance(value, str) else dict(checked_table(value, where))
    checked_keys(values, [f.name for f in fields(Part)], where)
    if not isinstance(values.get("file"), str) or not values["file"]:
        raise InputError(f"{where}: needs the name of a file")
    values = {**common, **values}
    for key in ("hub", "split", "several"):
        if not isinstance(values.get(key, ""), str):
            raise InputError(f"{where}.{key}: must be text")
    columns = {key: checked_table(values.get(key, {}), f"{where}.{key}") for key in ("columns", "hub_columns")}
    for key, named in columns.items():
        checked_keys(named, list(_COLUMNS), f"{where}.{key}")
    labels = checked_table(values.get("labels", {}), f"{where}.labels")
    for new, old in labels.items():
        if not isinstance(old, list) or not all(isinstance(name, str) for name in old):
            raise InputError(f'{where}.labels.{new}: list the labels that become {new!r}, as in ["a", "b"]')
    return Part(**{**values, **columns, "labels": {new: tuple(old) for new, old in labels.items()}})


def checked_table(value: Any, where: str) -> Mapping[str, Any]:
    """Return a table; refuse what is none."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: must be a table, not {value!r}")
    return value


def checked_truth(value: Any, where: str) -> bool:
    """Return true or false; refuse what is neither, such as "no"."""
    if not isinstance(value, bool):
        raise InputError(f"{where}: must be true or false, not {value!r}")
    return value


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{where}: must be a whole number from 0, not {value!r}")
    return value
