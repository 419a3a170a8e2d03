"""A whole study: planned, worked through, and its outcome written."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calmix.errors import InputError
from calmix.report.figures import save_figure
from calmix.report.methods import draw_methods, prepare_methods
from calmix.study.asking import read_study
from calmix.study.collecting import collect
from calmix.study.grid import Library, Plan, make_plan
from calmix.study.tabulating import Table, tabulate
from calmix.study.working import State, Storage, state_of, work
from calmix.study.writing import write_outcome

__all__ = ["Order", "Outcome", "Prepared", "conduct", "data_folder", "outcome", "prepare"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a study has come to so far."""

    plan: Plan
    state: State
    rows: list[dict[str, Any]]
    tables: list[Table]


@dataclass(frozen=True)
class Order:
    """What to study and where: all that another process needs to know."""

    study_file: Path
    out: Path
    runs: Path | None = None
    """The folder of the runs, which studies may share; OUT/runs where none is given."""
    data: Path | None = None
    """The folder with the tasks' files, else what CALMIX_DATA names, else the hub."""
    models: tuple[str, ...] = ()
    """Models to take instead of those in the file."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study whose every run is known, nothing trained yet."""

    order: Order
    plan: Plan
    library: Library
    storage: Storage


def data_folder(given: Path | None) -> Path | None:
    """Return where tasks' files are: as given, or as CALMIX_DATA says; None: on the hub."""
    folder = given or (Path(os.environ["CALMIX_DATA"]) if os.environ.get("CALMIX_DATA") else None)
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: is no folder to read data from (--data, CALMIX_DATA)")
    return folder


def prepare(order: Order) -> Prepared:
    """Return a study with every run planned: what is wrong with it, or missing, is told here."""
    study = read_study(order.study_file)
    if order.models:
        study = replace(study, models=tuple(dict.fromkeys(order.models)))
    data = data_folder(order.data)
    library = Library(study.tasks, data)
    plan = make_plan(study, library)
    # Other processes may work elsewhere.
    whole = replace(
        order,
        study_file=order.study_file.absolute(),
        out=order.out.absolute(),
        runs=None if order.runs is None else order.runs.absolute(),
        data=None if data is None else data.absolute(),
        models=tuple(str(Path(name).absolute()) if Path(name).is_dir() else name for name in order.models),
    )
    return Prepared(whole, plan, library, Storage(order.runs or order.out / "runs"))


def conduct(
    prepared: Prepared,
    *,
    minutes: float | None = None,
    on_state: Callable[[State], None] | None = None,
) -> State:
    """Make the runs that are missing, in this process, and return where the study then stands; see `work`."""
    until = None if minutes is None else time.monotonic() + 60 * minutes
    return work(prepared.plan, prepared.storage, prepared.library, until=until, on_state=on_state)


def outcome(prepared: Prepared) -> Outcome:
    """Write the tables of what is finished, and return them."""
    plan, storage = prepared.plan, prepared.storage
    rows = collect(plan, storage)
    tables = tabulate(plan, storage, rows)
    write_outcome(prepared.order.out, plan, storage, rows, tables)
    if rows and find_spec("matplotlib") is not None:
        for domain, title in (("in", "in domain"), ("out", "out of domain")):
            draw = [row for row in rows if row["domain"] == domain and row["data"] != "dev"]
            if draw:
                figure = draw_methods(prepare_methods(draw), title=title)
                for kind in ("png", "svg"):
                    save_figure(figure, prepared.order.out / f"study-{domain}.{kind}")
    return Outcome(plan, state_of(plan, storage), rows, tables)
