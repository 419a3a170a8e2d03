"""What commands print: figures as a table, progress as a bar, both on the right stream."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.training import Progress

__all__ = ["figures_table", "guarantee_lines", "interval_table", "note", "print_json", "training_bar", "working_bar"]


def print_json(value: Any) -> None:
    """Print a value for a script to read: all that stdout gets."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(line: str) -> None:
    """Tell the user something, on stderr; the text is shown as it is, whatever brackets it has."""
    _stderr().print(f"· {line}", markup=False, highlight=False, soft_wrap=True)


def figures_table(splits: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Print the figures of each data set, before and after temperature scaling."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("data")
    for name in ("rows", "accuracy", "ECE", "scaled", "OE", "scaled", "NLL", "scaled"):
        table.add_column(name, justify="right")
    for name, figures in splits.items():
        before, after = figures["before"], figures["after"]
        row = [name, f"{before['n']:,}", f"{before['accuracy']:.1%}"]
        for key in ("ece", "oe"):
            row += [f"{before[key]:.1%}", f"{after[key]:.1%}"]
        row += [f"{before['nll']:.3f}", f"{after['nll']:.3f}"]
        table.add_row(*row)
    Console(highlight=False).print(table)


def interval_table(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures of each data set with their 95 % intervals, and of each group without."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("data", overflow="fold")
    for name in ("rows", "accuracy", "ECE", "debiased", "OE", "NLL"):
        table.add_column(name, justify="right")
    for name, found in figures.items():
        ranges = found["intervals"]
        cells = {key: f"{found[key]:.1%}" for key in ("accuracy", "ece", "oe")} | {"nll": f"{found['nll']:.3f}"}
        for key in cells:
            low, high = ranges[key]
            cells[key] += f"\n{low:.3f}–{high:.3f}" if key == "nll" else f"\n{100 * low:.1f}–{100 * high:.1f}"
        debiased = f"{found['debiased_ece']:.1%}"
        table.add_row(
            Text(name), f"{found['n']:,}", cells["accuracy"], cells["ece"], debiased, cells["oe"], cells["nll"]
        )
        for group, inside in found.get("groups", {}).items():
            shown = [f"{inside[key]:.1%}" for key in ("accuracy", "ece", "debiased_ece", "oe")]
            table.add_row(Text(f"  {group}"), f"{inside['n']:,}", *shown, f"{inside['nll']:.3f}")
    Console(highlight=False).print(table)


def guarantee_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return what the threshold and the sets of a model promise, in words; nothing where none were asked for."""
    if "guarantee" not in figures:
        return []
    threshold, sets = figures["guarantee"]["threshold"], figures["guarantee"]["sets"]
    asked = f"{threshold['accuracy']:.0%}"
    if threshold["threshold"] is None:
        lines = [f"no threshold holds {asked} accuracy on this data: --abstain would accept nothing"]
    elif threshold["threshold"] == 0:
        lines = [f"accepting every prediction keeps accuracy at {asked} or above"]
    else:
        lines = [
            f"accepting confidence ≥ {threshold['threshold']:.3f} keeps accuracy at {asked} or above "
            f"(certain to {1 - threshold['error']:.0%}) and answers {threshold['coverage']:.0%} of the texts"
        ]
    return [*lines, f"prediction sets contain the true label {sets['level']:.0%} of the time"]


@contextmanager
def training_bar(quiet: bool) -> Iterator[Callable[["Progress"], None] | None]:
    """Yield what shows a run's progress on stderr: epoch, loss, samples per second, time left."""
    if quiet:
        yield None
        return
    from rich import progress as rich

    bar = rich.Progress(
        rich.TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} samples/s"),
        rich.TimeRemainingColumn(),
        console=_stderr(),
        transient=True,
    )
    with bar:
        task = bar.add_task("training", total=None, epoch=1, epochs="?", loss=float("nan"), rate=0.0)

        def show(progress: "Progress") -> None:
            bar.update(
                task,
                total=progress.steps,
                completed=progress.step,
                epoch=progress.epoch,
                epochs=progress.epochs,
                loss=progress.loss,
                rate=progress.rate,
            )

        yield show


@contextmanager
def working_bar(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield what shows how many of `total` items are done, on stderr."""
    if quiet:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=_stderr(), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)
