"""The AUM filter of a map: samples judged by runs in which some carry a label that is known to be wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.data.origin import few, shown
from calmix.dynamics import Dynamics, Relabelling, aum_filter, easy_and_ambiguous, threshold_runs
from calmix.dynamics.cartography import check_fraction
from calmix.dynamics.thresholds import WORDINGS, Wording
from calmix.errors import InputError

__all__ = [
    "FILTER_ON",
    "JUDGED",
    "Filter",
    "FilterCount",
    "FilterOn",
    "Verdicts",
    "filter_notes",
    "judge",
    "with_fake_class",
]

FilterOn = Literal["region", "all"]
"""Train the runs with threshold samples on the region that is judged, as the paper does, or on all samples."""
FILTER_ON: tuple[FilterOn, ...] = get_args(FilterOn)
JUDGED = ("easy", "ambiguous", "both")
"""The regions that a filter can judge: the easy one alone in TDMixUp, each by itself in its first table."""

_FAKE_CLASS = "(threshold sample)"
# A choice without words: the same for every sample, in any language, and nothing a table would offer.
_FAKE_CHOICE = ""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """How an AUM filter judges (Pleiss et al. 2020; Park & Caragea, NAACL 2022)."""

    judged: str = "easy"
    """The region, one of `JUDGED`."""
    fraction: float = 0.33
    """The share of the data in a region: whoever trains on another has samples in it that nobody judged."""
    percentile: float = 80.0
    """Of the threshold samples' AUM: what is below it is dropped."""
    wording: Wording = "balanced"
    """Which samples become threshold samples: see `calmix.dynamics.threshold_samples`."""
    on: FilterOn = "region"
    """What the runs with threshold samples train on."""

    def check(self, examples: Examples) -> None:
        """Refuse what cannot be judged, before anything is trained."""
        if not 0 < self.percentile < 100:
            raise InputError(f"--percentile must be between 0 and 100, not {self.percentile}")
        known = {"--judge": (self.judged, JUDGED), "--filter-wording": (self.wording, WORDINGS)}
        for option, (value, values) in (known | {"--filter-on": (self.on, FILTER_ON)}).items():
            if value not in values:
                raise InputError(f"{option} is one of {', '.join(values)}, not {value}")
        check_fraction(self.fraction, "--fraction")
        _check_enough(examples, self.fraction)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What a filter says of each sample."""

    judged: NDArray[np.bool_]
    dropped: NDArray[np.bool_]
    """Judged to be mislabelled; never a sample that was not judged."""


@dataclass(frozen=True)
class FilterCount:
    """How many samples of a region a filter judged, how many of them it dropped, and in how many training runs."""

    region: str
    judged: int
    dropped: int
    runs: int
    labels_lost: tuple[str, ...] = ()
    """Labels of which every sample of the region was dropped."""


def judge(
    examples: Examples,
    dynamics: Dynamics,
    by: Filter,
    out: Path,
    seed: int,
    recorded: Callable[[Examples, Path, str], Dynamics],
) -> tuple[Verdicts, list[FilterCount]]:
    """Return what runs with threshold samples say of a region's samples, and how many of each region they dropped."""
    judged, dropped = (np.zeros(len(examples), dtype=np.bool_) for _ in range(2))
    counts = []
    for name, rows in zip(("easy", "ambiguous"), easy_and_ambiguous(dynamics, fraction=by.fraction), strict=True):
        if by.judged not in (name, "both"):
            continue
        # Each region has threshold samples of its own: those of another are learnt sooner or later than its samples.
        runs = threshold_runs(
            examples.labels, _sizes(examples), rows, np.random.default_rng([seed, 1]), wording=by.wording
        )
        if not all(len(run.thresholds) for run in runs):
            where = examples.source or "the data"
            raise InputError(f"{where}: too few {name} samples with equally many choices for --filter")
        for turn, run in enumerate(runs, start=1):
            data = with_fake_class(examples, run.thresholds)
            # The runs see the region alone: among all others, threshold samples are too few to be learnt at all, and
            # lie below everyone else.
            seen = recorded(
                data.take(rows) if by.on == "region" else data,
                out / f"threshold-{name}-{turn}",
                f"threshold run {turn}, {name}",
            ).for_ids([examples.ids[row] for row in rows])
            stays = aum_filter(seen, np.searchsorted(rows, run.thresholds.rows), k=by.percentile)
            dropped[np.setdiff1d(run.judged, rows[stays])] = True
        judged[rows] = True
        kinds, gone = examples.labels[rows], dropped[rows]
        # The labels of choices are places, which mean nothing.
        lost = (label for k, label in enumerate(examples.label_names) if (kinds == k).any() and gone[kinds == k].all())
        counts.append(FilterCount(name, len(rows), int(gone.sum()), len(runs), tuple(lost)))
    return Verdicts(judged, dropped), counts


def filter_notes(counts: Sequence[FilterCount]) -> list[str]:
    """Return what to heed about a filter that changes nothing, or leaves nothing of the region or of a label."""
    notes = []
    for one in counts:
        if one.dropped == 0:
            notes.append(
                f"filter: none of the {one.judged:,} {one.region} samples is dropped; training on what is kept is "
                "training without a filter. Try a higher --percentile, more --epochs, or --filter-wording literal"
            )
        elif one.dropped == one.judged:
            notes.append(f"filter: all {one.judged:,} {one.region} samples are dropped; try a lower --percentile")
        elif one.labels_lost:
            lost = few([shown(label) for label in one.labels_lost])
            notes.append(
                f"filter: every {one.region} sample with the label {lost} is dropped: its runs have learnt rather "
                "which labels are rare than which are wrong; try more --epochs"
            )
    return notes


def with_fake_class(examples: Examples, fake: Relabelling) -> Examples:
    """Return the examples with one more class, or one more choice each, to which the threshold samples belong."""
    labels = fake.applied(examples.labels)
    if examples.kind != "choices":
        return replace(examples, labels=labels, label_names=(*examples.label_names, _FAKE_CLASS), targets=None)
    choices = [[*given, _FAKE_CHOICE] for given in examples.column("choices")]
    table, place = examples.table, examples.table.column_names.index("choices")
    return replace(examples, table=table.set_column(place, "choices", pa.array(choices)), labels=labels)


def _check_enough(examples: Examples, fraction: float) -> None:
    """Refuse data of which no region could hold a threshold sample."""
    fewest = int(np.min(_sizes(examples)))
    if int(len(examples) * fraction + 0.5) // (fewest + 1) == 0:
        where = examples.source or "the data"
        raise InputError(f"{where}: {len(examples)} rows are too few for --filter: no threshold sample could be made")


def _sizes(examples: Examples) -> int | NDArray[np.int64]:
    counts = examples.choice_counts
    return len(examples.label_names) if counts is None else counts
