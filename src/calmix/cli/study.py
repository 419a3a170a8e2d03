"""`calmix study`: methods side by side, over tasks and seeds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.cli.showing import note, plain, print_side_by_side

if TYPE_CHECKING:
    from rich.text import Text

    from calmix.study import Outcome, Prepared, State
    from calmix.study.tabulating import Table

__all__ = ["study"]

_WHERE = "Where it runs"
# Seconds between two lines about progress where there is no terminal.
_QUIET = 60.0


class _On(StrEnum):
    here = "here"
    ray = "ray"


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="What to compare: see docs/study.md.")],
    out: Annotated[Path, typer.Option(help="Folder for the tables; a study begun there goes on.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the tasks' files. Default: beside STUDY.toml, then $CALMIX_DATA, else the hub."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for the runs, which several studies may share. Default: OUT/runs.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder or hub name of an encoder, instead of the study's; NAME=FOLDER says where a model is that the "
            "study calls NAME. Repeatable."
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Begin no run after so many minutes.", rich_help_panel=_WHERE)
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Processes of this machine that make runs side by side; auto: as many as fit on its GPU.",
            rich_help_panel=_WHERE,
        ),
    ] = "1",
    on: Annotated[_On, typer.Option(help="Where runs are made.", rich_help_panel=_WHERE)] = _On.here,
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster to join. Default: $RAY_ADDRESS, or one that runs on this machine, or one of its own.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            help="Ray: GPUs per task; 0.25 lets four share one. Default: the share of a GPU's memory it should need.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    cpus: Annotated[float, typer.Option(help="Ray: CPUs per task.", rich_help_panel=_WHERE)] = 1.0,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Train nothing: make the tables of what is there.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and train nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON on stdout, nothing else there.")
    ] = False,
) -> None:
    """Train every method on every task with every seed, and compare them.

    Example: `calmix study studies/desk.toml --out desk-study`
    """
    from calmix.study import Order, conduct, conduct_on_ray, conduct_with_workers, outcome, prepare, state_of

    processes = _processes(workers)
    _check_together(on, processes, minutes, tables=tables, retry=retry)
    prepared = prepare(Order(file, out, runs, data, tuple(model or ())))
    if dry_run:
        _list(prepared)
        return
    if retry:
        for key in prepared.plan.runs:
            prepared.storage.forgive(key)
    if tables:
        _check_any_made(state_of(prepared.plan, prepared.storage), prepared.storage.root)
    else:
        make = partial(conduct, prepared)
        if on is _On.ray:
            make = partial(conduct_on_ray, prepared, address=address, gpus=gpus, cpus=cpus, on_note=note)
        elif (many := processes or _fitting(prepared)) != 1:
            make = partial(conduct_with_workers, prepared, many)
        with _bar(quiet=as_json) as show:
            make(minutes=minutes, on_state=show)
    done = outcome(prepared)
    page = None if no_report else _page(out)
    if as_json:
        sys.stdout.write((out / "study.json").read_text(encoding="utf-8"))
    else:
        _print(done, page)
    state = state_of(prepared.plan, prepared.storage)
    if state.open:
        how = "without --tables they are made" if tables else "the same command goes on"
        note(f"{state.open} of {state.total} runs are still to be made: {how}")
    if state.failed:
        failures = filter(None, map(prepared.storage.failure, prepared.plan.runs))
        why = next((f", the first of them: {str(each['error']).partition(chr(10))[0]}" for each in failures), "")
        note(f"{state.failed} of {state.total} runs failed{why}")
        note(f"all that went wrong is in {out / 'study.md'}; --retry tries them again")
        raise typer.Exit(1)


def _check_together(on: _On, processes: int | None, minutes: float | None, *, tables: bool, retry: bool) -> None:
    """Refuse options that cannot be meant, or not at once."""
    from calmix.errors import InputError

    if on is _On.ray and processes != 1:
        raise InputError("give --workers or --on ray: on a cluster, Ray decides how many")
    if minutes is not None and not minutes >= 0:
        raise InputError(f"--minutes must be 0 or more, not {minutes}")
    if tables and retry:
        raise InputError("--tables trains nothing, and --retry trains again what failed: leave one of them out")


def _check_any_made(state: "State", root: Path) -> None:
    """Refuse to make tables of nothing."""
    from calmix.errors import InputError

    if state.done + state.failed == 0:
        raise InputError(
            f"{root}: has none of the {state.total} runs of this study, to make tables of: leave out --tables to make "
            "them, or say with --runs where they are"
        )


def _processes(workers: str) -> int | None:
    """Return how many processes were asked for; None is as many as fit."""
    from calmix.errors import InputError

    try:
        number = None if workers == "auto" else int(workers)
    except ValueError:
        raise InputError(f"--workers must be a whole number, or auto, not {workers!r}") from None
    if number is not None and number < 1:
        raise InputError(f"--workers must be at least 1, not {number}")
    return number


def _fitting(prepared: "Prepared") -> int:
    from calmix.study import fitting_workers

    many = fitting_workers(prepared)
    note(f"{many} processes share the GPU" if many > 1 else "one process: there is no GPU that several would fit on")
    return many


def _list(prepared: "Prepared") -> None:
    from calmix.report.titles import model_title
    from calmix.study import state_of

    plan, storage = prepared.plan, prepared.storage
    for key, spec in plan.runs.items():
        status = "done" if storage.finished(key) else "failed" if storage.failure(key) else "open"
        what = "map" if spec.what == "map" else spec.recipe + (f" on {spec.subset}" if spec.subset else "")
        options = "".join(f" {name}={value}" for name, value in spec.options.items())
        print(plain(f"{key} {status:6} {spec.task} {model_title(spec.model)} {what}{options} seed {spec.seed}"))
    state = state_of(plan, storage)
    left = state.samples - state.samples_done
    print(f"{state.total} runs, {state.done} done, {state.failed} failed; {left:,} training samples to go")


def _page(out: Path) -> Path:
    from calmix.report import write_study_page

    return write_study_page(out)


def _print(done: "Outcome", page: Path | None) -> None:
    from rich.console import Console

    from calmix.report.titles import TITLES, model_title

    console = Console(highlight=False)
    tables = [table for table in done.tables if table.entries]  # of others there is nothing to see
    for table in tables:
        about = " · ".join(part for part in (TITLES[table.figure], model_title(table.model), table.setting) if part)
        print_side_by_side(console, plain(about), *_cells(table))
    if tables:
        study = done.plan.study
        spread = "standard deviation" if study.spread == "std" else "standard error"
        print(f"mean ± {spread} over {len(study.seeds)} seeds; * differs from {plain(study.baseline)}; +TS: scaled")
    if page is not None:
        print(f"page: {page}")


def _cells(table: "Table") -> tuple[list["Text"], list[list["Text"]]]:
    """Return the names of a table's methods, and its columns, each with its heading first."""
    from rich.text import Text

    from calmix.study.writing import column_title, ranked, shown, shown_rank

    columns = []
    for column in table.columns:
        cells = [Text(plain(column_title(column)))]
        for method in table.methods:
            entry = table.entries.get((method, column))
            stands = entry is not None and entry.difference is not None and entry.difference.stands
            style = "bold" if entry is not None and entry.best else ""
            cells.append(Text(shown(column.figure, entry) + ("*" if stands else ""), style=style))
        columns.append(cells)
    for scaled, title in ranked(table).items():
        columns.append([Text(title), *(Text(shown_rank(table, method, scaled)) for method in table.methods)])
    return [Text("method"), *(Text(plain(method)) for method in table.methods)], columns


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[["State"], None] | None]:
    """Yield what shows a study's progress on stderr: runs, the current one, time left.

    On a terminal as a bar; elsewhere, in a cluster's log for example, as a line now and then.
    """
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _now_and_then()
        return
    from rich import progress as rich
    from rich.console import Console

    columns: list[Any] = [
        rich.TextColumn("run {task.fields[done]}/{task.fields[runs]}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[current]}", markup=False),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
    ]
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("study", total=None, done=0, runs="?", current="")
        begun: list[int] = []

        def show(state: "State") -> None:
            # Time left is told by what this process has done, not by what was there before.
            begun[:] = begun or [state.samples_done]
            bar.update(
                task,
                total=state.samples - begun[0],
                completed=state.samples_done - begun[0],
                done=state.done + state.failed,
                runs=state.total,
                current=plain(state.current),
            )

        yield show


def _now_and_then() -> Callable[["State"], None]:
    """Return what tells how far a study is, once in a while."""
    began = told = time.monotonic()
    first: list[int] = []

    def tell(state: "State") -> None:
        nonlocal told
        first[:] = first or [state.samples_done]
        now, made = time.monotonic(), state.samples_done - first[0]
        if now - told < _QUIET or not made:
            return
        told = now
        left = (now - began) * (state.samples - state.samples_done) / made
        what = f": {state.current}" if state.current else ""  # several processes are at several
        note(f"run {state.done + state.failed}/{state.total}, about {max(1, round(left / 60))} min left{what}")

    return tell
