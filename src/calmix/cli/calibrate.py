"""`calmix calibrate`: correct the confidence of a trained model for good."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.parsing import DropoutRate, Members, Passes, check_order, predictor, share
from calmix.cli.showing import figures_table, guarantee_lines, note, print_json, working_bar

__all__ = ["calibrate"]


class _Method(StrEnum):
    temperature = "temperature"
    vector = "vector"
    isotonic = "isotonic"
    histogram = "histogram"


def calibrate(
    model: Annotated[str, typer.Argument(help="Run folder or checkpoint: ours or any transformers classifier.")],
    dev: Annotated[str, typer.Argument(help="Labelled file the model has not been trained on.")],
    out: Annotated[Path, typer.Option(help="Folder for the calibrated copy.")],
    method: Annotated[
        _Method, typer.Option(help="A temperature goes into the weights; others need calmix to be applied.")
    ] = _Method.temperature,
    guarantee: Annotated[
        float | None,
        typer.Option(
            parser=share,
            metavar="NUMBER",
            help="Accuracy to hold among accepted predictions: half of DEV is kept to find the threshold.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.", min=1)] = 15,
    seed: Annotated[int, typer.Option(help="Decides how DEV is halved.")] = 0,
    ensemble: Members = None,
    mc_dropout: Passes = None,
    dropout: DropoutRate = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on stdout, nothing else there.")] = False,
) -> None:
    """Fit a recalibrator on labelled data and write a calibrated copy of the model.

    Example: `calmix calibrate run new-data.csv --guarantee 0.95 --out run-2`
    """
    from calmix.data.reading import check_there, read_ahead
    from calmix.errors import InputError
    from calmix.models import read_for
    from calmix.training import calibrate as correct
    from calmix.training.correcting import trained_on

    check_order("calmix calibrate", model, dev)
    check_there(dev)
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "label": label}
    tables = read_ahead(model, [dev], columns)
    classifier = predictor(model, ensemble, mc_dropout, dropout)
    examples = read_for(classifier, dev, split="dev", table=tables.get(dev), **columns)
    seen = max(trained_on(each, examples) for each in (model, *(ensemble or [])))
    if 2 * seen > len(examples):
        raise InputError(
            f"{dev}: the model was trained on {seen:,} of these {len(examples):,} rows, where it is surer and right "
            "more often than elsewhere; give rows it has not seen"
        )
    if seen:
        note(f"{seen:,} of {len(examples):,} rows were in the training data, so that these scores are optimistic")
    with working_bar("predicting", len(examples), quiet=as_json) as bar:
        figures = correct(
            classifier,
            examples,
            out=out,
            method=method.value,
            guarantee=guarantee,
            bins=bins,
            seed=seed,
            columns=columns,
            progress=bar,
            on_note=None if as_json else note,
        )
    if as_json:
        print_json({"folder": str(out), **figures})
        return
    figures_table(figures["splits"])
    for name, found in figures["splits"].items():
        before, after = found["before"]["accuracy"], found["after"]["accuracy"]
        if before != after:
            print(f"{name}: {method.value} changes predictions, accuracy goes from {before:.1%} to {after:.1%}")
    for line in guarantee_lines(figures):
        print(line)
    if guarantee is None:
        _note_threshold([model, *(ensemble or [])])
    note("fit: these rows chose the correction, so they flatter it; judge it on others with `calmix evaluate`")
    several = bool(ensemble) or mc_dropout is not None
    if several or method is not _Method.temperature:
        what = f"the {method.value} of a mean" if several else method.value
        note(f"{what} cannot go into the weights: it is in {out / 'calmix.json'}, and only calmix applies it")
    print(f"model: {out}")


def _note_threshold(models: list[str]) -> None:
    """Tell of a threshold that the calibrated copy does not have."""
    from calmix.models import checkpoint_of, read_beside

    for each in models:
        known = read_beside(Path(checkpoint_of(each))).threshold
        if known is not None:
            note(
                f"the threshold of {each} held for its confidence before, and is left out: "
                f"for a new one, calibrate with --guarantee {known.accuracy:g}"
            )
            return
