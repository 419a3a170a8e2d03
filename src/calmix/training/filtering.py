"""The AUM filter of a map: samples judged by runs in which some carry a label that is known to be wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.dynamics import Dynamics, Relabelling, aum_filter_pair, easy_and_ambiguous, threshold_pair
from calmix.errors import InputError

__all__ = ["JUDGED", "Verdicts", "check_enough", "judge", "with_fake_class"]

JUDGED = ("easy", "ambiguous", "both")
"""The regions that a filter can judge: the easy one alone in TDMixUp, each by itself in its first table."""

_FAKE_CLASS = "(threshold sample)"
# A choice without words: the same for every sample, in any language, and nothing a table would offer.
_FAKE_CHOICE = ""


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What a filter says of each sample."""

    judged: NDArray[np.bool_]
    dropped: NDArray[np.bool_]
    """Judged to be mislabelled; never a sample that was not judged."""


def judge(
    examples: Examples,
    dynamics: Dynamics,
    region: str,
    out: Path,
    percentile: float,
    seed: int,
    recorded: Callable[[Examples, Path, str], Dynamics],
    *,
    fraction: float,
) -> Verdicts:
    """Return what two runs with threshold samples say of a region's samples (four runs where it is `both`).

    A region is that `fraction` of the samples: whoever trains on another has samples in it that nobody judged.
    """
    judged, dropped = (np.zeros(len(examples), dtype=np.bool_) for _ in range(2))
    for name, rows in zip(("easy", "ambiguous"), easy_and_ambiguous(dynamics, fraction=fraction), strict=True):
        if region not in (name, "both"):
            continue
        # Each region has threshold samples of its own: those of another are learnt sooner or later than its samples.
        pair = threshold_pair(examples.labels, _sizes(examples), rows, np.random.default_rng([seed, 1]))
        if not all(map(len, pair)):
            where = examples.source or "the data"
            raise InputError(f"{where}: too few {name} samples with equally many choices for --filter")
        first, second = (
            recorded(with_fake_class(examples, fake), out / f"threshold-{name}-{turn}", f"threshold run {turn}, {name}")
            for turn, fake in enumerate(pair, start=1)
        )
        stays = aum_filter_pair(first, pair[0], second, pair[1], k=percentile)
        judged[rows] = True
        dropped[rows] = ~np.isin(rows, stays)
    return Verdicts(judged, dropped)


def with_fake_class(examples: Examples, fake: Relabelling) -> Examples:
    """Return the examples with one more class, or one more choice each, to which the threshold samples belong."""
    labels = fake.applied(examples.labels)
    if examples.kind != "choices":
        return replace(examples, labels=labels, label_names=(*examples.label_names, _FAKE_CLASS), targets=None)
    choices = [[*given, _FAKE_CHOICE] for given in examples.column("choices")]
    table, place = examples.table, examples.table.column_names.index("choices")
    return replace(examples, table=table.set_column(place, "choices", pa.array(choices)), labels=labels)


def check_enough(examples: Examples, fraction: float) -> None:
    """Refuse data of which no region could hold a threshold sample."""
    fewest = int(np.min(_sizes(examples)))
    if int(len(examples) * fraction + 0.5) // (fewest + 1) == 0:
        where = examples.source or "the data"
        raise InputError(f"{where}: {len(examples)} rows are too few for --filter: no threshold sample could be made")


def _sizes(examples: Examples) -> int | NDArray[np.int64]:
    counts = examples.choice_counts
    return len(examples.label_names) if counts is None else counts
