"""Setting rows aside for development."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from calmix.data.examples import Examples
from calmix.data.keys import folded_keys
from calmix.errors import InputError

__all__ = ["split_examples"]


def split_examples(examples: Examples, *, dev_fraction: float = 0.1, seed: int = 0) -> tuple[Examples, Examples]:
    """The examples in two parts, (train, dev), with the same share of each label.

    Rows whose texts are the same but for case and white space stay together. A label that has at least two
    different texts is in both parts. Who goes where depends on the texts and the seed, not on the order
    of the rows, which both parts keep.
    """
    if not 0 < dev_fraction < 1:
        raise InputError(f"the dev fraction must lie between 0 and 1, not {dev_fraction}")
    groups, strata = _groups(examples, seed)
    if len(examples) < 3 or len(groups) < 2:
        raise InputError(
            f"{examples.source or 'examples'}: {len(examples)} rows with {len(groups)} different texts "
            "are too few to set some aside; give a dev file"
        )
    dev: list[int] = []
    for stratum, quota in zip(strata, _quotas(groups, strata, dev_fraction), strict=True):
        dev += _chosen(groups, stratum, quota)
    if not dev:
        raise InputError(
            f"{examples.source or 'examples'}: no label has two different texts, so none can be set aside; "
            "give a dev file"
        )
    aside = np.zeros(len(examples), dtype=bool)
    for group in dev:
        aside[groups[group]] = True
    return examples.take(np.flatnonzero(~aside)), examples.take(np.flatnonzero(aside))


def _groups(examples: Examples, seed: int) -> tuple[list[NDArray[np.int64]], list[list[int]]]:
    """Rows by text, and those groups by label, everything in an order that only texts and seed decide."""
    names, inverse = np.unique(np.array(folded_keys(examples.table)), return_inverse=True)
    draw = [blake2b(f"{seed}:{name}".encode(), digest_size=16).digest() for name in names]
    rows = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    order = sorted(range(len(names)), key=draw.__getitem__)
    groups = [rows[group] for group in order]
    strata: dict[int, list[int]] = {}
    for number, members in enumerate(groups):
        # The index of the right choice is no class to be balanced. Copies that disagree go with the majority.
        labels, counts = np.unique(examples.labels[members], return_counts=True)
        label = 0 if examples.kind == "choices" else int(labels[np.argmax(counts)])
        strata.setdefault(label, []).append(number)
    return groups, [strata[label] for label in sorted(strata)]


def _quotas(groups: list[NDArray[np.int64]], strata: list[list[int]], fraction: float) -> list[int]:
    """How many rows of each stratum go to dev: proportional, whole, and together the share asked for."""
    exact = fraction * np.array([sum(len(groups[group]) for group in stratum) for stratum in strata])
    quotas = np.floor(exact).astype(int)
    rest = round(exact.sum()) - quotas.sum()
    quotas[np.argsort(quotas - exact, kind="stable")[:rest]] += 1
    return [int(quota) for quota in quotas]


def _chosen(groups: list[NDArray[np.int64]], stratum: list[int], quota: int) -> list[int]:
    """Groups of a stratum that make up about `quota` rows: at least one of them, and not all."""
    if len(stratum) < 2:
        return []
    chosen: list[int] = []
    left = quota
    for group in stratum:
        if len(groups[group]) <= left and len(chosen) < len(stratum) - 1:
            chosen.append(group)
            left -= len(groups[group])
    return chosen or [min(stratum, key=lambda group: len(groups[group]))]
