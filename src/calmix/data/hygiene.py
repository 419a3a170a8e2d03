"""What is suspicious about a data set before any training: copies, and rows of one split in another."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from calmix.data.columns import unread_parts
from calmix.data.examples import Examples
from calmix.data.keys import folded_keys, groups_of, same_label
from calmix.data.label_twins import counted
from calmix.data.origin import few, shown

__all__ = [
    "Duplicates",
    "dev_lines",
    "duplicates",
    "hygiene_lines",
    "labels_alike",
    "labels_of_few_rows",
    "leakage",
    "looks_like_ids",
]

# So many labels with fewer rows each than this are more likely dates, or ids.
_SEVERAL, _FEW = 10, 3
# Below so many rows, a calibration error is noise for the most part.
_ROUGH = 200
# Of labels that may be slips of the pen: so many times rarer, so many letters, among at most so many labels.
_RARE, _SHORT, _MANY = 20, 5, 500


@dataclass(frozen=True)
class Duplicates:
    """Copies within a data set.

    Attributes:
        rows: how many rows say what an earlier row says.
        conflicting: how many of those have copies with different labels.
    """

    rows: int
    conflicting: int


def duplicates(examples: Examples) -> Duplicates:
    """How many rows repeat the texts of an earlier one, whatever their case and white space."""
    return _copies(folded_keys(examples.table), examples.labels)


def _copies(row_keys: list[str], labels: NDArray[np.int64]) -> Duplicates:
    group, keys = groups_of(row_keys)
    extra = np.bincount(group, minlength=len(keys)) - 1
    order = np.lexsort((labels, group))
    order = order[labels[order] >= 0]  # rows without a label contradict nobody
    group, labels = group[order], labels[order]
    disagree = np.zeros(len(keys), dtype=bool)
    disagree[group[1:][(group[1:] == group[:-1]) & (labels[1:] != labels[:-1])]] = True
    return Duplicates(rows=int(extra.sum()), conflicting=int(extra[disagree].sum()))


def looks_like_ids(examples: Examples) -> bool:
    """Whether the texts of a data set of some size are all different and none has two words."""
    if examples.kind != "text" or len(examples) < 5:
        return False
    texts = examples.table["text"]
    return len(texts.unique()) == len(texts) and not pc.any(pc.match_substring_regex(texts, r"\S\s+\S")).as_py()


def labels_of_few_rows(examples: Examples) -> int:
    """How many labels occur, if there are many and hardly any has several rows, as with dates or ids; otherwise 0."""
    if not examples.label_names:
        return 0
    known = examples.labels[examples.labels >= 0]
    labels = len(np.unique(known))
    return labels if labels >= _SEVERAL and len(known) < _FEW * labels else 0


def labels_alike(examples: Examples) -> list[tuple[str, str]]:
    """Pairs of labels that differ in case or blanks, or a rare one in a letter from a common one; rows in brackets."""
    names = examples.label_names  # none for multiple choice
    counts = np.bincount(examples.labels[examples.labels >= 0], minlength=len(names))
    order = np.argsort(counts, kind="stable")
    found, same = [], list(map(same_label, names))
    for place, k in enumerate(order if 0 < len(names) <= _MANY else ()):
        for other in order[:place:-1]:
            slip = _RARE * counts[k] <= counts[other] and _slip(names[k], names[other])
            if counts[k] and (same[k] == same[other] or slip):
                found.append((counted(names[k], counts[k]), counted(names[other], counts[other])))
                break
    return found


def _slip(one: str, other: str) -> bool:
    """Whether words differ by a letter too many, too few or another, or by two neighbours that changed places."""
    one, other = sorted((one.casefold(), other.casefold()), key=len)
    if len(one) < _SHORT or len(other) - len(one) > 1:
        return False
    start = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    here, there = one[start:], other[start:]
    if not (here[:1] + there[:1]).isalpha():  # numbers and signs tell classes apart
        return False
    if len(one) < len(other):
        return here == there[1:]
    return here[1:] == there[1:] or (here[2:] == there[2:] and here[:2] == there[1::-1])


def leakage(train: Examples, other: Examples) -> int:
    """How many rows of `other` have texts that `train` has too, whatever their case and white space."""
    return _shared(set(folded_keys(train.table)), folded_keys(other.table))


def _shared(known: set[str], keys: list[str]) -> int:
    return sum(key in known for key in keys)


def dev_lines(train: Examples, dev: Examples) -> list[str]:
    """One line if the rows to choose by are few, and one if labels that are trained on have none among them."""
    lines = []
    if len(dev) < _ROUGH:
        what = "1 row is" if len(dev) == 1 else f"{len(dev)} rows are"
        lines.append(f"dev: {what} few to fit a temperature on: treat the calibrated figures as rough estimates")
    names = train.label_names  # none for multiple choice
    there, here = (np.bincount(each.labels[each.labels >= 0], minlength=len(names)) for each in (train, dev))
    absent = [shown(names[k]) for k in np.flatnonzero((there > 0) & (here == 0))] if names else []
    if absent:
        without = "it" if len(absent) == 1 else "them"
        lines.append(
            f"dev: no row has the label {few(absent)}: the epoch and the temperature are chosen without {without}"
        )
    return lines


def hygiene_lines(train: Examples, others: Mapping[str, Examples]) -> list[str]:
    """One line for the user per finding in the training data, and in each of the others; none if all is well."""
    lines = []
    if looks_like_ids(train):
        lines.append("train: the texts look like ids (no two alike, and not a space in them): is --text right?")
    if labels := labels_of_few_rows(train):
        lines.append(f"train: {labels} different labels in {len(train)} rows, like dates or ids: is --label right?")
    if train.kind == "text":
        for name, option in unread_parts(train.table):
            lines.append(
                f"train: {shown(name)} is not read: if it is a part of what is classified, name it with {option}"
            )
    alike = [f"{rare} and {common}" for rare, common in labels_alike(train)]
    if len(alike) == 1:
        lines.append(f"train: the labels {alike[0]} look like one, written in two ways")
    elif alike:
        lines.append(f"train: {len(alike)} pairs of labels look like one, written in two ways: {few(alike)}")
    of_train = folded_keys(train.table)
    copies = _copies(of_train, train.labels)
    if copies.rows:
        conflict = f", {copies.conflicting} of them with conflicting labels" if copies.conflicting else ""
        lines.append(
            f"train: {copies.rows} of {len(train)} rows {'repeats' if copies.rows == 1 else 'repeat'} another{conflict}"
        )
    keys = {name: folded_keys(other.table) for name, other in others.items()}
    known = set(of_train)
    for name, own in keys.items():
        if shared := _shared(known, own):
            lines.append(f"{name}: {_rows(shared, len(own))} also in train: they inflate its scores")
    chosen = set(keys.pop("dev", ()))
    for name, own in keys.items():
        if shared := _shared(chosen, own):
            lines.append(
                f"{name}: {_rows(shared, len(own))} also in dev, on which the temperature is fitted and an epoch may "
                "be chosen: they inflate its scores"
            )
    return lines


def _rows(some: int, of: int) -> str:
    return f"{some} of {of} rows {'is' if some == 1 else 'are'}"
