"""Twin labels, which differ in case or blanks alone: found, made one, or left as they are because somebody said so."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calmix.data.examples import Examples
from calmix.data.keys import same_label
from calmix.data.origin import Origin, few, shown

__all__ = ["Renamed", "counted", "merged_labels", "merging_line", "settled_labels", "twin_labels"]

_WAYS = (
    "--merge-labels makes one of each, the commonest spelling; --keep-labels trains them as different (in Python: "
    "merge_labels=True or False)"
)


@dataclass(frozen=True)
class Renamed:
    """A label that became another spelling of itself."""

    old: str
    new: str
    rows: int


def twin_labels(examples: Examples) -> list[list[int]]:
    """The classes of each group of twins among the labels that occur, the commonest first; none where all differ."""
    counts = _counts(examples)
    groups = _groups([name if rows else None for name, rows in zip(examples.label_names, counts, strict=True)])
    return [_commonest_first(group, counts) for group in groups.values() if len(group) > 1]


def merged_labels(examples: Examples, *, known: Sequence[str] = ()) -> tuple[Examples, list[Renamed]]:
    """The examples with one class for each group of twins, and which labels were renamed for it.

    Names that are among those `known` stay, and others become the known spelling; where none is known, a group has
    its commonest, of several the first. Classes keep their order, and where names are known, theirs.
    """
    names, counts = examples.label_names, _counts(examples)
    spelt = {same_label(name): name for name in reversed(known)}
    new_name = {}
    for same, group in _groups(names).items():
        usual = spelt.get(same) or names[_commonest_first(group, counts)[0]]
        new_name.update({names[k]: names[k] if names[k] in known else usual for k in group})
    usual_names = set(new_name.values())
    kept = dict.fromkeys([*(name for name in names if name in usual_names), *new_name.values()])
    order = (*(name for name in known if name in kept), *(name for name in kept if name not in known))
    renamed = [
        Renamed(name, new_name[name], int(rows))
        for name, rows in zip(names, counts, strict=True)
        if rows and new_name[name] != name
    ]
    return (examples if order == names else _moved(examples, new_name, order)), renamed


def settled_labels(
    examples: Examples, merge: bool | None, *, known: Sequence[str] = (), ways: str = _WAYS
) -> tuple[Examples, list[Renamed]]:
    """The examples with twins made one (`merge`), or left as they are (False); None refuses data that has some.

    `ways` tells those who are refused what they can do.
    """
    if merge:
        return merged_labels(examples, known=known)
    if merge is None and (twins := twin_labels(examples)):
        counts = _counts(examples)
        alike = [" and ".join(counted(examples.label_names[k], counts[k]) for k in reversed(group)) for group in twins]
        raise Origin(examples.source or "the training set").error(
            f"labels differ in case or blanks alone: {few(alike)}; {ways}"
        )
    return examples, []


def merging_line(name: str, renamed: Sequence[Renamed]) -> str:
    """What to tell of a data set whose labels were merged: which, and how many rows."""
    told = [f"{counted(each.old, each.rows)} into {_visible(each.new)}" for each in renamed]
    return f"{name}: merged labels of {_rows(sum(each.rows for each in renamed))}: {few(told)}"


def counted(name: str, rows: int) -> str:
    """A label with its rows in brackets."""
    return f"{_visible(name)} ({_rows(rows)})"


def _visible(name: str) -> str:
    # Lines are printed with single blanks, which would hide how twins differ.
    return shown(re.sub("  +", lambda blanks: "␣" * len(blanks[0]), name))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _counts(examples: Examples) -> NDArray[np.int64]:
    if examples.kind == "choices":
        return np.empty(0, dtype=np.int64)
    return np.bincount(examples.labels[examples.labels >= 0], minlength=len(examples.label_names))


def _groups(names: Sequence[str | None]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for k, name in enumerate(names):
        if name is not None:
            found.setdefault(same_label(name), []).append(k)
    return found


def _commonest_first(group: list[int], counts: NDArray[np.int64]) -> list[int]:
    return sorted(group, key=lambda k: -counts[k])


def _moved(examples: Examples, new_name: dict[str, str], names: tuple[str, ...]) -> Examples:
    """Return the examples with these classes, each label under its new name."""
    where = np.array([*(names.index(new_name[name]) for name in examples.label_names), -1], dtype=np.int64)
    if examples.targets is not None:
        targets = np.zeros((len(examples), len(names)))
        for old, new in enumerate(where[:-1]):
            targets[:, new] += examples.targets[:, old]
        return replace(examples, labels=targets.argmax(axis=1).astype(np.int64), label_names=names, targets=targets)
    return replace(examples, labels=where[examples.labels], label_names=names)  # -1 finds the last entry
