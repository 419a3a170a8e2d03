"""Setting rows aside for development."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from calmix.data.examples import Examples
from calmix.data.keys import folded_keys, groups_of
from calmix.errors import InputError

__all__ = ["fold_examples", "names_of_split", "split_examples"]

_NAMES = {"test": ("test", "t10k"), "dev": ("dev", "validation", "valid", "val")}


def names_of_split(split: str) -> tuple[str, ...]:
    """What a split may be called where data lie divided, the likeliest name first."""
    return _NAMES.get(split, (split,))


def split_examples(examples: Examples, *, dev_fraction: float = 0.1, seed: int = 0) -> tuple[Examples, Examples]:
    """The examples in two parts, (train, dev), with about the same share of each label.

    Rows whose texts are the same but for case and white space stay together. A label that has at least two
    different texts is in both parts. Who goes where depends on the texts and the seed, not on the order
    of the rows, which both parts keep.
    """
    source = examples.source or "examples"
    if not 0 < dev_fraction < 1:
        raise InputError(f"{source}: the dev fraction must lie between 0 and 1, not {dev_fraction}")
    group, keys = groups_of(folded_keys(examples.table))
    if len(examples) < 3 or len(keys) < 2:
        raise InputError(
            f"{source}: {len(examples)} rows with {len(keys)} different texts are too few to set some aside; "
            "give a dev file"
        )
    sizes, strata = np.bincount(group), _strata(examples, group, keys, seed)
    quotas = _quotas(np.array([sizes[stratum].sum() for stratum in strata]), dev_fraction)
    aside = np.zeros(len(keys), dtype=bool)
    for stratum, quota in zip(strata, quotas, strict=True):
        aside[stratum] = _chosen(sizes[stratum], int(quota))
    if not aside.any():
        raise InputError(f"{source}: no label has two different texts, so none can be set aside; give a dev file")
    return examples.take(np.flatnonzero(~aside[group])), examples.take(np.flatnonzero(aside[group]))


def fold_examples(examples: Examples, folds: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Return which of several folds each row is in, each with about the same share of each label.

    Rows whose texts are the same but for case and white space are in one fold. The only text of a label is in none: −1.
    Who is where depends on the texts and the seed, not on the order of the rows.
    """
    if folds < 2:
        raise InputError(f"--folds must be 2 or more, not {folds}")
    group, keys = groups_of(folded_keys(examples.table))
    fold_of_group = np.full(len(keys), -1, dtype=np.int64)
    turn = 0
    for stratum in _strata(examples, group, keys, seed):
        if len(stratum) > 1:
            fold_of_group[stratum] = (turn + np.arange(len(stratum))) % folds
            turn += len(stratum)
    found = np.asarray(fold_of_group[group])
    if len(np.unique(found[found >= 0])) < folds:
        raise InputError(
            f"{examples.source or 'examples'}: {len(examples)} rows with {len(keys)} different texts are too few for "
            f"{folds} folds; give a dev file"
        )
    return found


def _strata(examples: Examples, group: NDArray[np.int64], keys: list[str], seed: int) -> list[NDArray[np.int64]]:
    """Return the groups of each label in an order that their texts and the seed decide."""
    # The index of the right choice is no class to be balanced.
    labels = np.zeros_like(group) if examples.kind == "choices" else examples.labels
    label_of_group = _majority(group, labels, len(keys))
    return [_drawn(np.flatnonzero(label_of_group == label), keys, seed) for label in np.unique(label_of_group)]


def _majority(group: NDArray[np.int64], labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The most frequent label of each group, the smallest of those that tie."""
    pairs, times = np.unique(np.stack([group, labels], axis=1), axis=0, return_counts=True)
    order = np.lexsort((-pairs[:, 1], times, pairs[:, 0]))  # the best pair of each group comes last
    majority = np.empty(count, dtype=np.int64)
    majority[pairs[order, 0]] = pairs[order, 1]
    return majority


def _drawn(stratum: NDArray[np.int64], keys: list[str], seed: int) -> NDArray[np.int64]:
    """The groups in an order that their texts and the seed decide."""
    return np.array(
        sorted(stratum, key=lambda group: blake2b(f"{seed}:{keys[group]}".encode(), digest_size=16).digest())
    )


def _quotas(rows: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """How many rows of each stratum go to dev: proportional, whole, and together the share asked for."""
    exact = fraction * rows
    quotas = np.floor(exact).astype(np.int64)
    rest = round(exact.sum()) - quotas.sum()
    quotas[np.argsort(quotas - exact, kind="stable")[:rest]] += 1
    return np.asarray(quotas)


def _chosen(sizes: NDArray[np.int64], quota: int) -> NDArray[np.bool_]:
    """Which groups of a stratum make up about `quota` rows: at least one of them, and not all."""
    chosen = np.zeros(len(sizes), dtype=bool)
    if len(sizes) < 2:
        return chosen
    left, free = quota, len(sizes) - 1
    for position, size in enumerate(sizes.tolist()):
        if size <= left and free:
            chosen[position] = True
            left, free = left - size, free - 1
        if not left:
            break
    if not chosen.any():
        chosen[np.argmin(sizes)] = True
    return chosen
