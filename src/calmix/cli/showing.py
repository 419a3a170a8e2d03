"""What commands print: figures as a table, progress as a bar, both on the right stream."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.text import Text

    from calmix.training import Progress

# The consoles that bars are drawn on: what is printed meanwhile must be printed by them, on lines of its own.
_BARS: list["Console"] = []
# Columns of a terminal: what no table needs, and what a name keeps however narrow it is.
_WIDEST, _SHORTEST = 10_000, 12
# Rare labels that are shown of a data set; and the sets that are passed over where there are others.
_RARE, _ASIDE = 5, ("dev", "guard", "fit")

__all__ = [
    "console_for",
    "figures_table",
    "generations_table",
    "guarantee_lines",
    "interval_table",
    "note",
    "plain",
    "print_json",
    "print_side_by_side",
    "print_table",
    "rare_table",
    "separation_table",
    "training_bar",
    "unfamiliar_table",
    "verdict_lines",
    "working_bar",
]


def print_json(value: Any) -> None:
    """Print a value for a script to read: all that stdout gets. A number that is not finite is null."""
    from calmix.training.evaluating import json_safe

    print(json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False))


def plain(text: str) -> str:
    """Return text as one line that a terminal only shows: control characters are written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def note(line: str) -> None:
    """Tell the user something, on stderr; the text is shown as it is, whatever brackets it has."""
    console = _BARS[-1] if _BARS else _stderr()
    console.print(f"· {plain(line)}", markup=False, highlight=False, soft_wrap=True)


def print_side_by_side(
    console: "Console", title: str, names: Sequence["Text"], columns: Sequence[Sequence["Text"]]
) -> None:
    """Print columns beside the names of their rows, headings first; those that do not fit come below, no cell cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def width(column: Sequence[Text]) -> int:
        return max(cell.cell_len for cell in column) + 3

    left = list(columns)
    while left:
        room = console.width - width(names) - width(left[0])
        fitting = 1
        while fitting < len(left) and (room := room - width(left[fitting])) >= 0:
            fitting += 1
        here, left = left[:fitting], left[fitting:]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title), title_justify="left")
        table.add_column(names[0], overflow="fold")
        for heading, *_ in here:
            table.add_column(heading, justify="right", no_wrap=True)
        for row, name in enumerate(names[1:], 1):
            table.add_row(name, *(column[row] for column in here))
        console.print(table)


def figures_table(splits: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Print the figures of each data set, before and after temperature scaling."""
    rows = []
    for name, figures in splits.items():
        before, after = figures["before"], figures["after"]
        row = [f"{before['n']:,}", _percent(before["accuracy"])]
        for key in ("ece", "oe"):
            row += [_percent(before[key]), _percent(after[key])]
        rows.append(((plain(name),), [*row, _number(before["nll"]), _number(after["nll"])]))
    print_table(("data",), ("rows", "accuracy", "ECE", "scaled", "OE", "scaled", "NLL", "scaled"), rows)
    judged = [name for name in splits if name not in _ASIDE] or list(splits)[:1]
    rare_table({name: splits[name]["after"] for name in judged})


def rare_table(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print recall and precision of the rare classes of each data set, those found least often; nothing if none is."""
    rows = []
    for name, found in figures.items():
        for one in found.get("rare", [])[:_RARE]:
            cells = [f"{one['rows']:,}", _percent(one["recall"]), _percent(one["precision"])]
            rows.append(((plain(name), plain(one["label"])), cells))
    if not rows:
        return
    print_table(("data", "rare label"), ("rows", "recall", "precision"), rows)
    more = sum(max(0, len(found.get("rare", [])) - _RARE) for found in figures.values())
    if more:
        print(f"and {more:,} more rare {'label' if more == 1 else 'labels'}, found more often (--json lists all)")


def generations_table(generations: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of each generation of students after temperature scaling, data set by data set."""
    rows = []
    for name in generations[0]["splits"]:
        for turn, generation in enumerate(generations, start=1):
            found = generation["splits"][name]["after"]
            cells = [_percent(found[key]) for key in ("accuracy", "ece", "oe")] + [_number(found["nll"])]
            rows.append(((plain(name), str(turn)), cells))
    print_table(("data", "generation"), ("accuracy", "scaled ECE", "scaled OE", "scaled NLL"), rows)


def interval_table(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures of each data set with their 95 % intervals, and of each group without."""
    rows: list[tuple[tuple[str, ...], list[str]]] = []
    for name, found in figures.items():
        cells = {key: _percent(found[key]) for key in ("accuracy", "ece", "oe")} | {"nll": _number(found["nll"])}
        for key in cells:
            cells[key] += "\n" + _range(*found["intervals"][key], percent=key != "nll")
        debiased = _percent(found["debiased_ece"])
        shown = [f"{found['n']:,}", cells["accuracy"], cells["ece"], debiased, cells["oe"], cells["nll"]]
        rows.append(((plain(name),), shown))
        for group, inside in found.get("groups", {}).items():
            shown = [_percent(inside[key]) for key in ("accuracy", "ece", "debiased_ece", "oe")]
            rows.append(((f"  {plain(group)}",), [f"{inside['n']:,}", *shown, _number(inside["nll"])]))
    print_table(("data",), ("rows", "accuracy", "ECE", "debiased", "OE", "NLL"), rows)
    every = [part for found in figures.values() for part in (found, *found.get("groups", {}).values())]
    if any(part["debiased_ece"] < 0 for part in every):
        print(
            "debiased below 0 is no error: the gaps are smaller than chance alone makes them, "
            "and so few rows show no miscalibration"
        )


def unfamiliar_table(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print, for each file, how well each score tells its rows from unfamiliar ones."""
    several = len(figures) > 1
    rows = [
        (((file,) if several else ()) + (name, score.replace("_", " ")), found["mean_confidence"], found[score])
        for file, measured in figures.items()
        for name, found in measured["ood"].items()
        for score in found
        if isinstance(found[score], Mapping)
    ]
    separation_table(("data", "unfamiliar", "score") if several else ("unfamiliar", "score"), rows)


def separation_table(titles: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], float, Mapping[str, Any]]]) -> None:
    """Print rows of AUROC with its interval, AUPR and FPR95, and how sure the model was of the unfamiliar data."""
    shown = []
    for words, sure, found in rows:
        area = f"{_percent(found['auroc'])} ({_range(*found['interval'], percent=True)})"
        cells = [_percent(sure), area, _percent(found["aupr_out"]), _percent(found["fpr95"])]
        shown.append((tuple(map(plain, words)), cells))
    print_table(titles, ("confidence", "AUROC", "AUPR", "FPR95"), shown)


def print_table(
    names: tuple[str, ...], figures: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], list[str]]]
) -> None:
    """Print rows of names and figures: whole where no terminal limits them, in one with long names cut.

    It is their beginnings that go, which the names of files have in common.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def drawn(longest: int | None) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for title in names:
            table.add_column(title, overflow="fold")
        for title in figures:
            table.add_column(title, justify="right", no_wrap=True)
        for words, cells in rows:
            table.add_row(*(Text(_end_of(word, longest)) for word in words), *cells)
        return table

    table = drawn(None)
    console, wide = console_for(table)
    if wide > console.width:
        longest = max(len(word) for words, _ in rows for word in words)
        table = drawn(max(_SHORTEST, longest - (wide - console.width)))
    console.print(table)


def console_for(table: Any) -> tuple[Any, int]:
    """Return a console to print a table on, and how wide the table is: what is no terminal is as wide."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    wide = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    if not console.is_terminal:
        console.width = wide
    return console, wide


def _end_of(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"…{text[1 - longest :]}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _range(low: float | None, high: float | None, *, percent: bool) -> str:
    if low is None or high is None:
        return "–"
    return f"{100 * low:.1f}–{100 * high:.1f}" if percent else f"{low:.3f}–{high:.3f}"


def verdict_lines(folder: "Path") -> list[str]:
    """Return what the page of a run or an evaluation says first: what the model knows, and how far to trust it."""
    from calmix.report.runs import read_run
    from calmix.report.verdict import verdict_of

    verdict = verdict_of(read_run(folder))
    return [plain(f"{verdict.headline}. {verdict.knows.sentence}"), plain(verdict.sentence)]


def guarantee_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return what the threshold of a model promises, in words; nothing where none were asked for."""
    if "guarantee" not in figures:
        return []
    threshold = figures["guarantee"]["threshold"]
    asked, promises = _level(threshold["accuracy"]), figures.get("promises")
    sure = f"accuracy ≥ {asked} (with {1 - threshold['error']:.0%} confidence)"
    if threshold["threshold"] is None:
        lines = [f"{asked} accuracy cannot be promised{_why_not(promises)}. --abstain would accept nothing"]
    elif threshold["threshold"] == 0:
        lines = [f"accepting every prediction keeps {sure}"]
    else:
        lines = [
            f"accepting confidence ≥ {threshold['threshold']:.3f} keeps {sure} while answering "
            f"{threshold['coverage']:.0%} of the texts"
        ]
    return lines if promises is None else lines + _instead(threshold, promises)


def _why_not(promises: Mapping[str, Any] | None) -> str:
    if promises is None:
        return " from the rows kept for it"
    rows, needed = promises["rows"], promises["needed"]
    if rows < needed:
        return (
            f": you need at least {needed:,} held-out rows, all predicted correctly (more if any are wrong); you have "
            f"{rows:,}"
        )
    return f": the surest of the {rows:,} held-out rows are too few, or wrong too often"


def _instead(threshold: Mapping[str, Any], promises: Mapping[str, Any]) -> list[str]:
    """Return what a promise that says nothing, or cannot be given, leaves: what can be promised, if anything can."""
    constant, possible = promises["constant"], promises["possible"]
    asked, lines = threshold["accuracy"], []
    empty = constant is not None and constant["accuracy"] >= asked
    if empty:
        always = f"always answering '{plain(constant['label'])}'"
        lines.append(f"{_level(asked)} says nothing: it is kept by {always} ({constant['accuracy']:.0%} of these rows)")
    if possible is not None:
        level, answers = _level(possible["accuracy"]), f"{possible['coverage']:.0%} of the texts"
        lines.append(f"from these rows: {level} on {answers} (--guarantee {possible['accuracy']:g})")
    elif empty or threshold["threshold"] is None:
        what = "nothing"
        if constant is not None:
            what = f"no accuracy above that of always answering '{plain(constant['label'])}'"
            what += "" if empty else f" ({constant['accuracy']:.0%})"
        lines.append(f"from these rows {what} can be promised: give more dev data")
    return lines


def _level(share: float) -> str:
    """Return an accuracy that was asked for, with all its digits: 99.9% is not 100%."""
    return f"{100 * share:.4g}%"


@contextmanager
def training_bar(quiet: bool) -> Iterator[Callable[["Progress"], None] | None]:
    """Yield what shows a run's progress on stderr, if that is a terminal: epoch, loss, samples/s, time left."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich

    bar = rich.Progress(
        rich.TextColumn("{task.fields[epoch]}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[pace]}"),
        rich.TimeRemainingColumn(),
        console=_stderr(),
        transient=True,
    )
    with _drawn(bar):
        task = bar.add_task("training", total=None, epoch="preparing", pace="")

        def show(progress: "Progress") -> None:
            loss = f"  loss {progress.loss:.4f}" if math.isfinite(progress.loss) else ""
            bar.update(
                task,
                total=progress.steps,
                completed=progress.step,
                epoch=f"epoch {progress.epoch}/{progress.epochs}" if progress.epoch else "fitting the head",
                pace=f"{progress.step:,}/{progress.steps:,}{loss}  {progress.rate:,.0f} samples/s",
                refresh=True,
            )

        yield show


@contextmanager
def _drawn(bar: "Bars") -> Iterator[None]:
    """Draw a bar; notes are printed above it meanwhile."""
    _BARS.append(bar.console)
    try:
        with bar:
            yield
    finally:
        _BARS.pop()


@contextmanager
def working_bar(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield what shows how many of `total` items are done, on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    bar = Progress(console=_stderr(), transient=True)
    with _drawn(bar):
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)
