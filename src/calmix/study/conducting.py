"""A whole study: planned, worked through, and its outcome written."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calmix.errors import InputError
from calmix.study.asking import read_study
from calmix.study.collecting import collect
from calmix.study.grid import Library, Plan, make_plan
from calmix.study.tabulating import Table, tabulate
from calmix.study.working import State, Storage, state_of, work
from calmix.study.writing import write_outcome

__all__ = ["Outcome", "conduct", "data_folder", "outcome", "prepare"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a study has come to so far."""

    plan: Plan
    state: State
    rows: list[dict[str, Any]]
    tables: list[Table]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study whose every run is known, nothing trained yet."""

    plan: Plan
    library: Library
    storage: Storage
    out: Path


def data_folder(given: Path | None) -> Path | None:
    """Return where tasks' files are: as given, or as CALMIX_DATA says; None: on the hub."""
    folder = given or (Path(os.environ["CALMIX_DATA"]) if os.environ.get("CALMIX_DATA") else None)
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: is no folder to read data from (--data, CALMIX_DATA)")
    return folder


def prepare(
    study_file: Path,
    *,
    out: Path,
    runs: Path | None = None,
    data: Path | None = None,
    models: Sequence[str] = (),
) -> Prepared:
    """Return a study with every run planned; `models` are taken instead of those in its file."""
    study = read_study(study_file)
    if models:
        study = replace(study, models=tuple(dict.fromkeys(models)))
    library = Library(study.tasks, data_folder(data))
    plan = make_plan(study, library)
    return Prepared(plan, library, Storage(runs or out / "runs"), out)


def conduct(
    prepared: Prepared,
    *,
    minutes: float | None = None,
    retry: bool = False,
    only: set[str] | None = None,
    on_state: Callable[[State], None] | None = None,
) -> State:
    """Make the runs that are missing and return where the study then stands; see `work`."""
    plan, storage = prepared.plan, prepared.storage
    if retry:
        for key in plan.runs:
            storage.forgive(key)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    return work(plan, storage, prepared.library, until=until, only=only, on_state=on_state)


def outcome(prepared: Prepared) -> Outcome:
    """Write the tables of what is finished, and return them."""
    plan, storage = prepared.plan, prepared.storage
    rows = collect(plan, storage)
    tables = tabulate(plan, storage, rows)
    write_outcome(prepared.out, plan, storage, rows, tables)
    return Outcome(plan, state_of(plan, storage), rows, tables)
