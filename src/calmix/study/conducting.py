"""A whole study: planned, worked through, and its outcome written."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calmix.data.origin import closest
from calmix.errors import InputError
from calmix.report.figures import save_figure
from calmix.report.methods import draw_methods, prepare_methods
from calmix.study.asking import Study, read_study
from calmix.study.collecting import collect
from calmix.study.grid import Library, Plan, make_plan
from calmix.study.suiting import check_models
from calmix.study.tabulating import Table, tabulate
from calmix.study.working import State, Storage, state_of, work
from calmix.study.writing import write_outcome

__all__ = ["Order", "Outcome", "Prepared", "conduct", "data_folders", "outcome", "prepare"]


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
    """The folder with the tasks' files; without it they are looked for beside the study and where CALMIX_DATA says."""
    models: tuple[str, ...] = ()
    """Models to take instead of those in the file; `NAME=PLACE` says where one that is named there is found."""
    folders: tuple[Path | None, ...] = ()
    """Where files are looked for, once that has been found out."""
    place: Path | None = None
    """Where the command was given: relative names of models begin there."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study whose every run is known, nothing trained yet."""

    order: Order
    plan: Plan
    library: Library
    storage: Storage


def data_folders(given: Path | None, beside: Path) -> tuple[Path | None, ...]:
    """Return where tasks' files are looked for: where one says, else beside the study, then where CALMIX_DATA says.

    Without either, None comes last: the hub.
    """
    named = str(given) if given is not None else os.environ.get("CALMIX_DATA")
    if named and not Path(named).is_dir():
        option = "--data" if given is not None else "CALMIX_DATA"
        raise InputError(f"{named}: is no folder to read data from ({option})")
    last = Path(named).absolute() if named else None
    return (last,) if given is not None else (beside.absolute(), last)


def prepare(order: Order) -> Prepared:
    """Return a study with every run planned: what is wrong with it, or missing, is told here."""
    _check_out(order.out)
    study = read_study(order.study_file)
    models, places = _models_and_places(order.models, study)
    study = replace(study, models=models or study.models)
    folders = order.folders or data_folders(order.data, order.study_file.parent)
    library = Library(study.tasks, folders, str(order.study_file), places)
    plan, storage = make_plan(study, library), Storage(order.runs or order.out / "runs")
    check_models(plan, storage, library)
    # Other processes may work elsewhere.
    whole = replace(
        order,
        study_file=order.study_file.absolute(),
        out=order.out.absolute(),
        runs=None if order.runs is None else order.runs.absolute(),
        data=None if order.data is None else order.data.absolute(),
        models=(*map(_absolute, models), *(f"{name}={_absolute(place)}" for name, place in places.items())),
        folders=folders,
        place=Path.cwd(),
    )
    return Prepared(whole, plan, library, storage)


def _check_out(out: Path) -> None:
    """Refuse a folder whose page a study would overwrite with its own."""
    if out.is_file():
        raise InputError(f"{out}: is a file; --out must be a folder")
    if any((out / name).exists() for name in ("run.toml", "metrics.json")):
        raise InputError(f"{out}: holds a run, a map or an evaluation, and no study; give another --out")


def _models_and_places(given: Sequence[str], study: Study) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the models to take instead of the study's, and where those that are known by a name are found."""
    named = [value for value in given if "=" in value and not _is_there(value)]
    models = tuple(dict.fromkeys(value for value in given if value not in named))
    known = [*dict.fromkeys((*(models or study.models), *study.other_models))]
    places: dict[str, str] = {}
    for value in named:
        name, _, place = value.partition("=")
        if name not in known:
            raise InputError(
                f"--model {value}: the study has no model {name!r}{closest(name, known)} (it has: {', '.join(known)})"
            )
        if not place or places.get(name, place) != place:
            wrong = f"and {places[name]} are two places; give one" if place else "says no place"
            raise InputError(f"--model {value}: {wrong}")
        places[name] = place
    return models, places


def _is_there(model: str) -> bool:
    """Return whether it is a folder, or names a file of word vectors."""
    return Path(model.partition(":")[2] or model).exists()


def _absolute(model: str) -> str:
    return str(Path(model).absolute()) if Path(model).is_dir() else model


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
