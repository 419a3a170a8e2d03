"""The AUM filter of a map: easy samples judged by runs in which some carry a label that is known to be wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.dynamics import Dynamics, Relabelling, aum_filter_pair, easy_and_ambiguous, threshold_pair
from calmix.errors import InputError

__all__ = ["check_enough", "judged_easy", "with_fake_class"]

_FAKE_CLASS = "(threshold sample)"
# A choice without words: the same for every sample, in any language, and nothing a table would offer.
_FAKE_CHOICE = ""


def judged_easy(
    examples: Examples,
    dynamics: Dynamics,
    out: Path,
    percentile: float,
    seed: int,
    recorded: Callable[[Examples, Path, str], Dynamics],
) -> NDArray[np.bool_]:
    """Return which samples stay: all but the easy ones that two runs with threshold samples judge mislabelled."""
    easy, _ = easy_and_ambiguous(dynamics)
    pair = threshold_pair(examples.labels, _sizes(examples), easy, np.random.default_rng([seed, 1]))
    if not all(map(len, pair)):
        where = examples.source or "the data"
        raise InputError(f"{where}: too few easy samples with equally many choices for --filter")
    judged = [
        recorded(with_fake_class(examples, fake), out / f"threshold-{turn}", f"threshold run {turn}")
        for turn, fake in enumerate(pair, start=1)
    ]
    stays = aum_filter_pair(judged[0], pair[0], judged[1], pair[1], k=percentile)
    kept = np.ones(len(examples), dtype=np.bool_)
    kept[easy] = np.isin(easy, stays)
    return kept


def with_fake_class(examples: Examples, fake: Relabelling) -> Examples:
    """Return the examples with one more class, or one more choice each, to which the threshold samples belong."""
    labels = fake.applied(examples.labels)
    if examples.kind != "choices":
        return replace(examples, labels=labels, label_names=(*examples.label_names, _FAKE_CLASS), targets=None)
    choices = [[*given, _FAKE_CHOICE] for given in examples.column("choices")]
    table, place = examples.table, examples.table.column_names.index("choices")
    return replace(examples, table=table.set_column(place, "choices", pa.array(choices)), labels=labels)


def check_enough(examples: Examples) -> None:
    """Refuse data of which no third could hold a threshold sample."""
    fewest = int(np.min(_sizes(examples)))
    if int(len(examples) / 3 + 0.5) // (fewest + 1) == 0:
        where = examples.source or "the data"
        raise InputError(f"{where}: {len(examples)} rows are too few for --filter: no threshold sample could be made")


def _sizes(examples: Examples) -> int | NDArray[np.int64]:
    counts = examples.choice_counts
    return len(examples.label_names) if counts is None else counts
