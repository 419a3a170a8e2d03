"""What is suspicious about a data set before any training: copies, and rows of one split in another."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from calmix.data.examples import Examples
from calmix.data.keys import folded_keys, groups_of

__all__ = ["Duplicates", "duplicates", "hygiene_lines", "leakage", "looks_like_ids"]


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
    group, keys = groups_of(folded_keys(examples.table))
    extra = np.bincount(group, minlength=len(keys)) - 1
    labels = examples.labels
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


def leakage(train: Examples, other: Examples) -> int:
    """How many rows of `other` have texts that `train` has too, whatever their case and white space."""
    known = set(folded_keys(train.table))
    return sum(key in known for key in folded_keys(other.table))


def hygiene_lines(train: Examples, others: Mapping[str, Examples]) -> list[str]:
    """One line for the user per finding in the training data, and in each of the others; none if all is well."""
    lines = []
    if looks_like_ids(train):
        lines.append("train: the texts look like ids (no two alike, and not a space in them): is --text right?")
    copies = duplicates(train)
    if copies.rows:
        conflict = f", {copies.conflicting} of them with conflicting labels" if copies.conflicting else ""
        lines.append(f"train: {copies.rows} of {len(train)} rows repeat another{conflict}")
    for name, other in others.items():
        shared = leakage(train, other)
        if shared:
            lines.append(f"{name}: {shared} of {len(other)} rows are also in train; scores on them say little")
    return lines
