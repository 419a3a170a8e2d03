"""The data map of a run: what training revealed about each sample, on disk, and read back to guide another run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data import Examples, read_table, write_table
from calmix.data.label_twins import merged_labels
from calmix.data.origin import few, neighbour, shown
from calmix.dynamics import Dynamics, Region, absent_classes, label_issues, regions
from calmix.errors import InputError
from calmix.mixing import Recipe
from calmix.training.filtering import Verdicts
from calmix.training.folder import file_hash

__all__ = [
    "TEXTS",
    "WITHHELD",
    "Known",
    "check_guided",
    "check_recorded",
    "dropped_notes",
    "known_dynamics",
    "map_table",
    "region_rows",
    "write_map",
]

_REGIONS = {
    "easy": [Region.EASY],
    "ambiguous": [Region.AMBIGUOUS],
    "both": [Region.EASY, Region.AMBIGUOUS],
    "hard": [Region.HARD],
}
WITHHELD = "map: the model "
"""How the note begins of a run that knew its training data too little to doubt a label."""
# A note that names labels names so many.
_NAMED = 3
_MAP, _ISSUES = "datamap.parquet", "label_issues.csv"
TEXTS = ("text", "text_b", "choices", "image_from")
"""The columns of a map that hold what was read, of which there are those that the data has; of images, their names."""


@dataclass(frozen=True, eq=False)
class Known:
    """Dynamics recorded before, in the order of the training set."""

    dynamics: Dynamics
    verdicts: Verdicts | None
    """What an AUM filter says of the samples; None where none was applied."""
    digest: str


def write_map(
    folder: Path, dynamics: Dynamics, examples: Examples, verdicts: Verdicts | None = None, *, lean: bool = False
) -> None:
    """Write `datamap.parquet` and `label_issues.csv`, both with the texts; nothing if none was observed.

    A `lean` map is the first alone, without texts.
    """
    if not dynamics.was_observed:
        return
    if lean:
        write_table(map_table(dynamics, verdicts), folder / _MAP)
        return
    issues = label_issues(dynamics)
    rows = issues.order[issues.flagged[issues.order]]
    table = _with_texts(map_table(dynamics, verdicts), examples.table)
    if "image_key" in examples.table.column_names:  # which images were trained on, wherever their files are
        table = table.append_column("image_key", examples.table["image_key"])
    write_table(table, folder / _MAP)
    write_table(_with_texts(issues.to_table(flagged_only=True), examples.table.take(rows)), folder / _ISSUES)


def _with_texts(about: pa.Table, texts: pa.Table) -> pa.Table:
    for column in TEXTS:
        if column in texts.column_names:
            about = about.append_column(column, texts[column])
    return about


def map_table(dynamics: Dynamics, verdicts: Verdicts | None = None) -> pa.Table:
    """Return the dynamics with each sample's region, and the label it should have had where that looks wrong.

    Where a filter was applied, `kept` is what it says, and empty for samples that it did not judge.
    """
    issues = label_issues(dynamics)
    areas = {int(region): None if region is Region.NONE else region.name.lower() for region in Region}
    region = [areas[int(code)] for code in regions(dynamics)]
    names = dynamics.label_names or tuple(map(str, range(dynamics.n_classes)))
    suspected = [names[k] if wrong else None for k, wrong in zip(issues.suggested, issues.flagged, strict=True)]
    table = dynamics.to_table().append_column("region", pa.array(region, pa.string()))
    table = table.append_column("suspected", pa.array(suspected, pa.string()))
    if verdicts is None:
        return table
    return table.append_column("kept", pa.array(~verdicts.dropped, mask=~verdicts.judged))


def map_notes(dynamics: Dynamics) -> list[str]:
    """Return what someone who reads a map should know about it."""
    if not dynamics.was_observed:
        return []
    notes = []
    if not dynamics.has_spread:
        notes.append("map: every sample was seen once, so there is no variability; regions go by confidence alone")
    withheld = label_issues(dynamics).withheld
    if withheld:
        notes.append(
            f"map: {withheld}: no label is called wrong, and regions say little; more --epochs, or a larger --lr, "
            "may help"
        )
    names, codes = dynamics.label_names, regions(dynamics)
    for region in (Region.EASY, Region.AMBIGUOUS) if names else ():
        absent = [names[k] for k in absent_classes(dynamics, np.flatnonzero(codes == region))]
        if absent:
            told = few([shown(name) for name in absent])
            rows = f"{told} rows" if len(absent) == 1 else f"rows labelled {told}"
            notes.append(f"data map: no {rows} are in the {region.name.lower()} third")
    return notes


def check_recorded(source: str | Path) -> None:
    """Refuse a run or map that is not there, or has recorded nothing."""
    if not Path(source).exists():
        raise InputError(f"{source}: no such folder{neighbour(source, _holds_map)}")
    if Path(source).is_dir() and not (Path(source) / _MAP).is_file():
        raise InputError(f"{source}: holds no recorded dynamics ({_MAP}); make them with `calmix map`")


def _holds_map(folder: Path) -> bool:
    return (folder / _MAP).is_file()


def known_dynamics(source: str | Path, examples: Examples, *, spelt_alike: bool = False) -> Known:
    """Return the dynamics in a run folder or map for these samples, which must be those that were recorded.

    With `spelt_alike` their labels may be those from which `merge_labels` made the map's.
    """
    file = Path(source) / _MAP if Path(source).is_dir() else Path(source)
    check_recorded(source)
    if file.suffix != ".parquet":
        raise InputError(f"{source}: recorded dynamics are a Parquet file ({_MAP}), or the folder that holds it")
    whole, ids = Dynamics.load(file), examples.ids
    try:
        dynamics = whole.for_ids(ids)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    _check_labels(source, dynamics, _respelt(examples, dynamics.label_names) if spelt_alike else examples)
    table, verdicts = read_table(file), None
    if "kept" in table.column_names:
        kept = dict(zip(whole.ids, table["kept"].to_pylist(), strict=True))
        said = [kept[i] for i in ids]
        verdicts = Verdicts(np.array([one is not None for one in said]), np.array([one is False for one in said]))
    return Known(dynamics, verdicts, file_hash(file)[:16])


def dropped_notes(known: Known | None) -> list[str]:
    """Return how many samples the AUM filter of a map dropped that guides a run."""
    if known is None or known.verdicts is None:
        return []
    dropped, judged = int(known.verdicts.dropped.sum()), int(known.verdicts.judged.sum())
    if dropped == 0:
        return [f"filter: the map's AUM filter dropped none of {judged:,} samples: this run is as without a filter"]
    return [f"filter: the map's AUM filter dropped {dropped:,} of {judged:,} samples"]


def region_rows(known: Known, take: str, *, fraction: float = 0.33, filtered: bool = False) -> NDArray[np.int64]:
    """Return which samples are in a region (`easy`, `ambiguous`, `both` of these, `hard`), in their order.

    With `filtered`, those that the map's AUM filter dropped are left out. Of `both`, it may have judged one alone, as
    in TDMixUp: the other stays whole.
    """
    codes = regions(known.dynamics, fraction=fraction)
    chosen = np.isin(codes, _REGIONS[take])
    if filtered:
        if take == "hard":
            raise InputError("the AUM filter judges easy and ambiguous samples, not hard ones")
        judged = np.zeros_like(chosen) if known.verdicts is None else known.verdicts.judged & chosen
        in_part = any(judged[codes == code].any() and not judged[codes == code].all() for code in _REGIONS[take])
        if known.verdicts is None or in_part or not judged.any():
            raise InputError(
                f"the map's AUM filter has judged {judged.sum():,} of the {chosen.sum():,} samples of the region "
                f"{take}: make it with `calmix map --filter --judge {take} --fraction {fraction:g}`"
            )
        chosen &= ~known.verdicts.dropped
    return np.flatnonzero(chosen)


def _respelt(examples: Examples, names: Sequence[str]) -> Examples:
    return merged_labels(examples, known=names)[0] if names else examples


def _check_labels(source: str | Path, dynamics: Dynamics, examples: Examples) -> None:
    """Refuse dynamics of other labels: what they tell is about those."""
    names = np.array(examples.label_names, dtype=object)
    before = np.array(dynamics.label_names, dtype=object)
    seen = (dynamics.observations > 0) & (dynamics.labels >= 0)
    if not seen.any():
        raise InputError(f"{source}: none of the samples was observed in training")
    now, then = examples.labels[seen], dynamics.labels[seen]
    other = (names[now] if len(names) else now) != (before[then] if len(before) else then)
    if other.any():
        raise InputError(
            f"{source}: {other.sum():,} of {len(examples):,} samples had another label when they were recorded; "
            "make a map of the data as it is now"
        )


def check_guided(recipe: Recipe, source: str | Path | None, online: bool, examples: Examples) -> Known | None:
    """Return the dynamics a run is given, once it is clear that it wants them."""
    if recipe.guide is None:
        if source is not None or online:
            option = "--dynamics" if source is not None else "--online"
            raise InputError(f"{option} is for recipes guided by training dynamics, which this one is not")
        return None
    if source is not None and online:
        raise InputError("give --dynamics or --online, not both: online makes its own")
    return None if source is None else known_dynamics(source, examples)
