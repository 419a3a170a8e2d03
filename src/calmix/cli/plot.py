"""`calmix plot`: figures for papers, from the data of finished runs and studies."""

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.cli.parsing import check_apart
from calmix.cli.showing import note
from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.report.runs import Judged, RunFolder

__all__ = ["plot"]


class _What(StrEnum):
    reliability = "reliability"
    scatter = "scatter"
    risk_coverage = "risk-coverage"
    confusion = "confusion"
    curves = "curves"
    datamap = "datamap"
    ood = "ood"
    joint = "joint"
    extended = "extended"
    alpha = "alpha"
    bars = "bars"
    label_entropy = "label-entropy"


def _there(runs: list[Path] | None) -> list[Path] | None:
    """Refuse a folder that is not there before anything is said about options that are missing."""
    from calmix.data.origin import neighbour

    for run in runs or ():
        if not run.exists():
            hint = "; give the folder of a run, a map, an evaluation or a study"
            if str(run) in list(_What):
                hint = f"; for the figure of that name, calmix plot RUN --what {run}"
            raise InputError(f"{run}: no such folder{neighbour(run, Path.is_dir) or hint}")
    return runs


_SEVERAL = (_What.reliability, _What.risk_coverage, _What.scatter, _What.joint, _What.extended, _What.bars)
# Whose numbers are in no file of the run's folder.
_WITH_NUMBERS = (_What.scatter, _What.joint, _What.extended, _What.ood, _What.alpha, _What.bars, _What.label_entropy)
# What is drawn of one run alone, and what to do with several.
_INSTEAD = {
    _What.curves: "extended draws those of several",
    _What.ood: "calmix ood compares models, in one folder",
    _What.alpha: "give those of one study",
}
# What each option is of.
_OF = {
    "data": (_What.reliability, _What.risk_coverage, _What.scatter, _What.confusion),
    "bins": (_What.reliability,),
    "score": (_What.ood,),
    "points": (_What.scatter,),
    "epoch": (_What.joint,),
    "alpha": (_What.label_entropy,),
    "classes": (_What.label_entropy,),
    "recipe": (_What.alpha,),
    "method": (_What.bars,),
    "figure": (_What.alpha, _What.bars),
    "scaled": (_What.bars,),
}
# The files of a run, an evaluation or a study that figures are made of.
_READ = (
    *("run.toml", "metrics.json", "log.jsonl", "predictions-*.parquet", "datamap.parquet", "ood-scores.parquet"),
    *("study.json", "about.json", "study.parquet"),
)


def plot(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            callback=_there,
            is_eager=True,
            help="Folder of a run, a map or an evaluation; of several for reliability, risk-coverage, scatter, joint "
            "and extended; of a study for alpha; of one or several studies for bars; none for label-entropy.",
        ),
    ] = None,
    *,
    what: Annotated[_What, typer.Option(help="Which figure.")],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF file.")],
    table: Annotated[
        Path | None,
        typer.Option(
            help="Also write the numbers, as CSV, JSONL or Parquet: of scatter, joint, extended, alpha, bars, "
            "label-entropy and ood; the others' are in the run's files."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Of reliability, risk-coverage, scatter and confusion: data sets to draw (test, ood-NAME, dev). "
            "Repeatable; default: all that chose nothing, of confusion the first."
        ),
    ] = None,
    bins: Annotated[int | None, typer.Option(help="Of reliability: bins; default: the run's.", min=1)] = None,
    score: Annotated[
        str, typer.Option(help="Of ood: max_probability, negative_entropy, margin or negative_energy.")
    ] = "max_probability",
    points: Annotated[int, typer.Option(help="Of scatter: groups of rows.", min=1)] = 50,
    epoch: Annotated[list[int] | None, typer.Option(help="Of joint: epochs to show. Repeatable.")] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="Of label-entropy. Repeatable.")] = None,
    classes: Annotated[
        int | None, typer.Option(help="Of label-entropy: equally large classes; without, partners differ.", min=2)
    ] = None,
    recipe: Annotated[str, typer.Option(help="Of alpha: the recipe whose α is varied.")] = "input-mixup",
    method: Annotated[list[str] | None, typer.Option(help="Of bars: methods to show. Repeatable.")] = None,
    figure: Annotated[list[str] | None, typer.Option(help="Of alpha and bars: accuracy, ece, oe … Repeatable.")] = None,
    scaled: Annotated[bool, typer.Option("--scaled", help="Of bars: after temperature scaling.")] = False,
) -> None:
    """Draw a figure of finished runs or of a study.

    Example: `calmix plot run --what reliability --out fig.pdf`, or `calmix plot study --what alpha --out fig.pdf`;
    two runs side by side: `calmix plot runs/erm runs/mixup --what reliability --out fig.pdf`
    """
    from calmix.data import write_table
    from calmix.data.tables import check_writable
    from calmix.report import save_figure
    from calmix.report.figures import figure_format

    figure_format(out)
    _check_options(context, what)
    folders = _folders(what, runs or [])
    if table is not None:
        check_writable(table)
        check_apart("--table", table, *(file for folder in folders for kept in _READ for file in folder.glob(kept)))
    numbers: Any = None
    try:
        if what in _WITH_NUMBERS:
            numbers, drawn = _prepared(
                what,
                folders,
                {"score": score, "points": points, "epochs": epoch, "data": data, "alphas": alpha, "classes": classes}
                | {"recipe": recipe, "methods": method, "figures": figure, "scaled": scaled},
            )
        else:
            drawn = _drawn(_read(folders), what, data, bins)
        if table is not None:
            if numbers is None:
                kept = {_What.curves: "log.jsonl", _What.datamap: "datamap.parquet"}.get(what, "predictions-*.parquet")
                raise InputError(f"--table: the numbers of {what.value} are in the run's folder already: {kept}")
            _check_replaceable(table, numbers.column_names)
            write_table(numbers, table)
        save_figure(drawn, out)
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'calmix[report]'") from None
    print(f"figure: {out}")


def _check_options(context: typer.Context, what: _What) -> None:
    """Refuse an option that means nothing to the figure."""
    for name, figures in _OF.items():
        source = context.get_parameter_source(name)
        if what not in figures and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{name} is of {', '.join(figures)}, and means nothing to {what}: leave it out")


def _check_replaceable(table: Path, names: list[str]) -> None:
    """Refuse to write numbers over anything but such numbers."""
    from calmix.data import read_table

    if not table.exists():
        return
    with suppress(InputError):  # no table that we read, and none of ours
        if read_table(table).column_names == names:
            return
    raise InputError(f"--table {table}: is there already, and holds something else; give another file, or remove it")


def _read(folders: list[Path]) -> dict[str, "RunFolder"]:
    """Return the runs in folders, by the shortest names that tell them apart."""
    from calmix.report.comparison import run_names
    from calmix.report.runs import read_run, under_one_name

    return dict(zip(run_names(folders), under_one_name([read_run(folder) for folder in folders]), strict=True))


def _folders(what: _What, runs: list[Path]) -> list[Path]:
    if what is _What.label_entropy:
        if runs:
            raise InputError("label-entropy is of no run: give --alpha, and --classes")
        return []
    if not runs:
        raise InputError(f"{what.value} needs the folder of a run or a study")
    if len(runs) > 1 and what not in _SEVERAL:
        instead = _INSTEAD.get(what, "draw one of each")
        raise InputError(f"{what.value} is drawn of one folder, not of {len(runs)}: {instead}")
    return runs


def _prepared(what: _What, folders: list[Path], asked: dict[str, Any]) -> tuple[Any, Any]:
    """Return the numbers of a figure as a table, and the figure."""
    from calmix import report

    if what is _What.ood:
        from calmix.data import read_table
        from calmix.training.recording import SCORES_FILE

        if not (folders[0] / SCORES_FILE).is_file():
            raise InputError(
                f"{folders[0]}: has no scores of unfamiliar data; make them: calmix evaluate … --ood, or calmix ood"
            )
        table = read_table(folders[0] / SCORES_FILE)
        panels = report.prepare_unfamiliar(table, score=asked["score"])
        return table, report.draw_unfamiliar(panels, score=asked["score"])
    if what is _What.label_entropy:
        import numpy as np

        shares = None if asked["classes"] is None else [1.0] * asked["classes"]
        alphas = asked["alphas"] or [0.1, 0.2, 0.4, 1.0]
        table = report.prepare_entropies(alphas, generator=np.random.default_rng(0), shares=shares)
        return table, report.draw_entropies(table)
    return _of_studies(what, folders, asked) if what in (_What.alpha, _What.bars) else _of_runs(what, folders, asked)


def _of_studies(what: _What, folders: list[Path], asked: dict[str, Any]) -> tuple[Any, Any]:
    from calmix import report
    from calmix.report.comparison import run_names
    from calmix.report.rows import rows_of_studies

    figures = {} if asked["figures"] is None else {"figures": asked["figures"]}
    found = dict(zip(run_names(folders), map(report.read_study_rows, folders), strict=True))
    methods = next(iter(found.values()))[0]
    rows = rows_of_studies({name: rows for name, (_, rows) in found.items()})
    if what is _What.alpha:
        table = report.prepare_alpha(methods, rows, recipe=asked["recipe"], **figures)
        return table, report.draw_alpha(table)
    table = report.prepare_bars(rows, methods=asked["methods"], scaled=asked["scaled"], **figures)
    return table, report.draw_bars(table)


def _of_runs(what: _What, folders: list[Path], asked: dict[str, Any]) -> tuple[Any, Any]:
    from calmix import report

    found = _read(folders)
    if what is _What.scatter:
        judged = [
            (name, one.title, one.probs["before" if "before" in one.probs else "after"], one.labels)
            for name, run in found.items()
            for one in _chosen(run, asked["data"])
        ]
        table = report.prepare_scatter(judged, points=asked["points"])
        return table, report.draw_scatter(table)
    histories = {name: run.history for name, run in found.items()}
    if what is _What.joint:
        table = report.prepare_joint(histories, epochs=asked["epochs"])
        return table, report.draw_joint(table)
    table = report.prepare_extended(histories)
    return table, report.draw_extended(table)


def _drawn(runs: dict[str, "RunFolder"], what: _What, names: list[str] | None, bins: int | None) -> Any:
    from calmix import report
    from calmix.report.panels import other_rows, reliability_panels, risk_panels

    run = next(iter(runs.values()))
    if what is _What.datamap:
        if run.dynamics is None and run.history and not report.fine_tuned(run.history):
            raise InputError(f"{run.path}: was not fine-tuned (--epochs 0): without epochs there is no data map")
        if run.dynamics is None:
            raise InputError(f"{run.path}: recorded no data map (datamap.parquet); make one with `calmix map`")
        return report.draw_datamap(report.prepare_datamap(run.dynamics))
    if what is _What.curves:
        curves = report.prepare_curves(run.history, run.metrics.get("best_epoch"))
        if run.history and not report.fine_tuned(run.history):
            raise InputError(f"{run.path}: was not fine-tuned (--epochs 0), so that there are no epochs to draw")
        if not curves.panels:
            raise InputError(f"{run.path}: has no log of its epochs (log.jsonl)")
        return report.draw_curves(curves)
    judged = {name: _chosen(each, names) for name, each in runs.items()}
    if what is not _What.confusion:
        for title in other_rows(judged):
            note(f"{title}: is not the same rows in every run, so that curves may differ for that alone")
        if what is _What.risk_coverage:
            return report.draw_risk_coverage(risk_panels(judged))
        return report.draw_reliability(
            reliability_panels(judged, bins={name: bins or each.bins for name, each in runs.items()})
        )
    if names and len(names) > 1:
        raise InputError(f"confusion is drawn of one data set, not of {len(names)}: draw one of each")
    (first, *_) = next(iter(judged.values()))
    if not first.classes:
        raise InputError(f"{run.path}: multiple choice has no classes to confuse")
    return report.draw_confusion(
        report.prepare_confusion(first.probs["after"], first.labels, first.classes), first.title
    )


def _chosen(run: "RunFolder", names: list[str] | None) -> list["Judged"]:
    if not run.judged:
        raise InputError(f"{run.path}: was judged on no data, so that there is nothing of that kind to draw")
    there = {one.name: one for one in run.judged}
    unknown = next((name for name in names or [] if name not in there), None)
    if unknown is not None:
        raise InputError(f"--data {unknown}: {run.path} has {', '.join(there)}")
    if names:
        return [there[name] for name in names]
    return [one for one in run.judged if not one.aside] or list(run.judged)
