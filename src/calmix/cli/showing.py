"""What commands print: figures as a table, progress as a bar, both on the right stream."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.training import Progress

__all__ = ["figures_table", "note", "print_json", "training_bar", "working_bar"]


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
    for name in ("rows", "accuracy", "ECE", "→ scaled", "OE", "→ scaled", "NLL", "→ scaled"):
        table.add_column(name, justify="right")
    for name, figures in splits.items():
        before, after = figures["before"], figures["after"]
        row = [name, f"{before['n']:,}", f"{before['accuracy']:.1%}"]
        for key in ("ece", "oe"):
            row += [f"{before[key]:.1%}", f"{after[key]:.1%}"]
        row += [f"{before['nll']:.3f}", f"{after['nll']:.3f}"]
        table.add_row(*row)
    Console(highlight=False).print(table)


@contextmanager
def training_bar(quiet: bool) -> Iterator[Callable[["Progress"], None] | None]:
    """Yield what shows a run's progress on stderr: epoch, loss, samples per second, time left."""
    if quiet:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} samples/s"),
        TimeRemainingColumn(),
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
