"""`calmix plot`: figures for papers, from the data of a finished run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.report import RunFolder

__all__ = ["plot"]


class _What(StrEnum):
    reliability = "reliability"
    risk_coverage = "risk-coverage"
    confusion = "confusion"
    curves = "curves"
    datamap = "datamap"
    ood = "ood"


def plot(
    run: Annotated[Path, typer.Argument(help="Folder of a run, a map or an evaluation.")],
    what: Annotated[_What, typer.Option(help="Which figure.")],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF file.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data sets to draw (test, ood-NAME, dev). Repeatable; default: all that chose nothing."),
    ] = None,
    bins: Annotated[
        int | None, typer.Option(help="Bins of the reliability diagram; default: the run's.", min=1)
    ] = None,
    score: Annotated[
        str, typer.Option(help="Of ood: max_probability, negative_entropy, margin or negative_energy.")
    ] = "max_probability",
) -> None:
    """Draw a figure of a finished run: reliability, risk-coverage, confusion, curves, datamap or ood.

    Example: `calmix plot run --what reliability --out fig.pdf`
    """
    from calmix.report import read_run, save_figure
    from calmix.report.figures import figure_format

    figure_format(out)
    try:
        if what is _What.ood:
            figure = _unfamiliar(run, score)
        else:
            found = read_run(run)
            figure = _drawn(found, what, data, bins or found.bins)
        save_figure(figure, out)
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'calmix[report]'") from None
    print(f"figure: {out}")


def _unfamiliar(folder: Path, score: str) -> Any:
    from calmix.data import read_table
    from calmix.report import draw_unfamiliar, prepare_unfamiliar
    from calmix.training.recording import SCORES_FILE

    file = folder / SCORES_FILE
    if not file.is_file():
        raise InputError(
            f"{folder}: has no scores of unfamiliar data; make them: calmix evaluate … --ood, or calmix ood"
        )
    return draw_unfamiliar(prepare_unfamiliar(read_table(file), score=score), score=score)


def _drawn(run: "RunFolder", what: _What, names: list[str] | None, bins: int) -> Any:
    from calmix import report

    if what is _What.datamap:
        if run.dynamics is None:
            raise InputError(f"{run.path}: recorded no data map (datamap.parquet); make one with `calmix map`")
        return report.draw_datamap(report.prepare_datamap(run.dynamics))
    if what is _What.curves:
        curves = report.prepare_curves(run.history, run.metrics.get("best_epoch"))
        if not curves.panels:
            raise InputError(f"{run.path}: has no log of its epochs (log.jsonl)")
        return report.draw_curves(curves)
    judged = _chosen(run, names)
    if what is _What.reliability:
        words = {"before": "before temperature", "after": "after temperature"}
        return report.draw_reliability(
            {
                one.title: {
                    words[stage] if len(one.probs) > 1 else "as it is": report.prepare_reliability(
                        probs, one.labels, bins=bins
                    )
                    for stage, probs in one.probs.items()
                }
                for one in judged
            }
        )
    if what is _What.risk_coverage:
        return report.draw_risk_coverage(
            {one.title: report.prepare_risk_coverage(one.probs["after"], one.labels) for one in judged}
        )
    first = judged[0]
    if not first.classes:
        raise InputError(f"{run.path}: multiple choice has no classes to confuse")
    return report.draw_confusion(
        report.prepare_confusion(first.probs["after"], first.labels, first.classes), first.title
    )


def _chosen(run: "RunFolder", names: list[str] | None) -> list[Any]:
    if not run.judged:
        raise InputError(f"{run.path}: was judged on no data, so that there is nothing of that kind to draw")
    there = {one.name: one for one in run.judged}
    unknown = next((name for name in names or [] if name not in there), None)
    if unknown is not None:
        raise InputError(f"--data {unknown}: the run has {', '.join(there)}")
    if names:
        return [there[name] for name in names]
    return [one for one in run.judged if not one.aside] or list(run.judged)
