"""What a finished run, map or evaluation left in its folder, read back to be shown."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.calibration import Temperature
from calmix.data import read_table
from calmix.data.origin import neighbour
from calmix.data.remembering import remembered_columns
from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.training import read_predictions
from calmix.training.mapping import TEXTS

__all__ = ["Judged", "RunFolder", "Stage", "read_run", "same_rows", "under_one_name"]

Stage = Literal["before", "after"]
"""Before or after temperature scaling; what is judged as it stands is `after`."""
_OUTSIDE = "ood-"
# In the order people ask for them.
_ORDER = {"test": 0, "guard": 2, "dev": 3}


@dataclass(frozen=True, eq=False)
class Judged:
    """A labelled data set and what the model said about it."""

    name: str
    title: str
    outside: bool
    """Whether it is out of domain."""
    figures: dict[Stage, dict[str, Any]]
    """As they are in `metrics.json`."""
    probs: dict[Stage, NDArray[np.float64]]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    """Empty for multiple choice, whose choices are not classes."""
    ids: tuple[str, ...]
    digest: str | None = None
    """The hash of the data, where the run recorded it."""

    @property
    def aside(self) -> bool:
        """Whether these rows chose something (the epoch, the temperature, a threshold), so that they flatter."""
        return self.name in ("dev", "guard")


@dataclass(frozen=True, eq=False)
class RunFolder:
    """A finished run (or map, or evaluation): where it is and what is in it."""

    path: Path
    kind: Literal["train", "map", "evaluate"]
    record: str
    """`run.toml`, as it stands."""
    settings: dict[str, Any]
    metrics: dict[str, Any]
    judged: tuple[Judged, ...] = ()
    dynamics: Dynamics | None = None
    texts: pa.Table | None = None
    """The columns of the map that hold what was read, one row for each sample of `dynamics`."""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What people call it: the name of its folder."""
        return self.path.absolute().name

    @property
    def heading(self) -> str:
        """What its page is called: of an evaluation, which is in a folder with a hash, what was evaluated on what."""
        if self.kind != "evaluate":
            return self.name
        models = [self.config.get("model"), *(self.config.get("ensemble") or [])]
        files = dict(self.config.get("data", {}))
        return f"{' + '.join(_last(one) for one in models)} on {', '.join(map(_last, files))}"

    @property
    def columns(self) -> dict[str, str]:
        """The columns that were named to read its data, by what they hold."""
        return remembered_columns(self.path)

    @property
    def config(self) -> dict[str, Any]:
        """The options it was made with."""
        return dict(self.settings.get("config", {}))

    @property
    def bins(self) -> int:
        """Of its calibration errors."""
        return int(self.config.get("bins", 15))


def _last(name: Any) -> str:
    return Path(str(name)).name or str(name)


def _holds_run(folder: Path) -> bool:
    return (folder / "run.toml").is_file()


def read_run(folder: str | Path) -> RunFolder:
    """Return the finished run in a folder."""
    folder = Path(folder)
    if not folder.is_dir():
        asked = neighbour(folder, _holds_run) or "; give the folder of a run, a map or an evaluation"
        raise InputError(f"{folder}: no such folder{asked}")
    if not _holds_run(folder):
        if (folder / "config.json").is_file():
            raise InputError(
                f"{folder}: is a model without figures; `calmix evaluate` makes some, in a folder to give here"
            )
        if (folder / "study.json").is_file():
            raise InputError(f"{folder}: is a study; name one of its runs, in {folder / 'runs'}")
        raise InputError(f"{folder}: holds no run of ours (no run.toml)")
    if not (folder / "metrics.json").is_file():
        raise InputError(f"{folder}: the run there is not finished (no metrics.json); the same command continues it")
    try:
        record = (folder / "run.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(record)
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        log = (folder / "log.jsonl").read_text(encoding="utf-8") if (folder / "log.jsonl").is_file() else ""
        history = [json.loads(line) for line in log.splitlines()]
        _check_shape(metrics, history)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder}: run.toml, metrics.json or log.jsonl is damaged ({error})") from None
    if settings.get("config", {}).get("command") == "ood":
        raise InputError(f"{folder}: compares models on unfamiliar data; calmix plot --what ood draws it")
    titles = metrics.get("files", {})
    hashes = settings.get("config", {}).get("data", {})
    judged = tuple(_judged(folder, name, stages, titles, hashes) for name, stages in metrics.get("splits", {}).items())
    command = settings.get("config", {}).get("command", "train")
    dynamics = Dynamics.load(folder / "datamap.parquet") if (folder / "datamap.parquet").is_file() else None
    return RunFolder(
        path=folder,
        kind=command if command in ("map", "evaluate") else "train",
        record=record,
        settings=settings,
        metrics=metrics,
        judged=tuple(sorted(judged, key=lambda one: _ORDER.get(one.name, 1))),
        dynamics=dynamics,
        texts=None if dynamics is None else _texts(folder / "datamap.parquet"),
        history=history,
    )


def _check_shape(metrics: Any, history: list[Any]) -> None:
    """Refuse figures and a log that no run of ours writes."""
    splits = metrics.get("splits", {}) if isinstance(metrics, dict) else None
    if not isinstance(splits, dict):
        raise ValueError("the figures are no table by data set")
    for name, stages in splits.items():
        after = stages.get("after") if isinstance(stages, dict) else None
        if not isinstance(after, dict) or not {"n", "accuracy", "ece"} <= after.keys():
            raise ValueError(f"there are no figures of {name!r}")
    if not all(isinstance(entry, dict) and isinstance(entry.get("epoch"), int) for entry in history):
        raise ValueError("the log has a line that is no epoch")


def _texts(file: Path) -> pa.Table:
    table = read_table(file)
    return table.select([name for name in TEXTS if name in table.column_names])


def same_rows(one: Judged, other: Judged) -> bool:
    """Return whether two runs were judged on the same labelled rows, whatever each calls them."""
    if one.digest is not None and one.digest == other.digest:
        return True
    return one.ids == other.ids and np.array_equal(one.labels, other.labels)


def under_one_name(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Return the runs with data that several were judged on called as the first of these calls it.

    Data that chose something in one of them keeps its name: it flatters that one alone.
    """
    known: dict[str, Judged] = {}
    renamed = []
    for run in runs:
        names = {one.name for one in run.judged}
        judged = []
        for one in run.judged:
            first = one if one.digest is None else known.setdefault(one.digest, one)
            if first.name in names or first.aside or one.aside:
                judged.append(one)
                continue
            names.add(first.name)
            judged.append(replace(one, name=first.name, title=first.title, outside=first.outside))
        renamed.append(replace(run, judged=tuple(judged)))
    return renamed


def _judged(
    folder: Path,
    name: str,
    figures: dict[Stage, dict[str, Any]],
    titles: dict[str, str],
    hashes: Any,
) -> Judged:
    probs, labels, table = read_predictions(folder / f"predictions-{name}.parquet")
    scored: dict[Stage, NDArray[np.float64]] = {"after": probs}
    if "before" in figures:
        scored = {"before": _unscaled(table, probs.shape[1]), **scored}
    outside = name.startswith(_OUTSIDE)
    return Judged(
        name=name,
        title=titles.get(name, f"{name.removeprefix(_OUTSIDE)}, out of domain" if outside else name),
        outside=outside,
        figures=figures,
        probs=scored,
        labels=labels,
        classes=tuple(c.removeprefix("p_") for c in table.column_names if c.startswith("p_")),
        ids=tuple(table["id"].to_pylist()) if "id" in table.column_names else (),
        digest=hashes.get(titles.get(name, name)) if isinstance(hashes, dict) else None,
    )


def _unscaled(table: pa.Table, width: int) -> NDArray[np.float64]:
    """Return the probabilities before temperature scaling, from the logits; choices that are not there get 0."""
    column = table["logits"].combine_chunks()
    flat = np.asarray(column.flatten(), dtype=np.float32)
    lengths = np.diff(np.asarray(column.offsets))
    logits = np.full((len(lengths), width), -np.inf, dtype=np.float32)
    logits[np.arange(width) < lengths[:, None]] = flat
    return np.asarray(Temperature(1.0)(logits), dtype=np.float64)
