"""`calmix evaluate`: how good and how well calibrated predictions are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.showing import interval_table, note, print_json, working_bar
from calmix.errors import InputError

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[str | None, typer.Argument(help="Run folder or checkpoint; none with --predictions.")] = None,
    files: Annotated[list[str] | None, typer.Argument(help="Labelled files.")] = None,
    predictions: Annotated[
        list[str] | None,
        typer.Option(help="Predictions made anywhere: `label`, and p_NAME columns, or lists `probs` or `logits`."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Column to measure each value of on its own, too.")] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.", min=1)] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on stdout, nothing else there.")] = False,
) -> None:
    """Measure accuracy and calibration, with 95 % intervals.

    Example: `calmix evaluate run test.csv tweets.csv`, or `calmix evaluate --predictions mine.parquet`
    """
    if bool(predictions) == (model is not None):
        raise InputError("give a model and labelled files, or --predictions FILE, not both and not neither")
    if model is not None and not files:
        raise InputError(f"give labelled files to evaluate {model} on")

    from calmix.training import intervals, json_safe, measure, measure_groups

    figures: dict[str, Any] = {}
    sources = (
        _from_files(predictions or [])
        if predictions
        else _from_model(
            model or "", files or [], {"text": text, "text_b": text_b, "choices": choices, "label": label}, as_json
        )
    )
    for name, (probs, labels, table) in sources.items():
        if group is not None and group not in table.column_names:
            raise InputError(
                f"{name}: has no column {group!r} to group by (there are: {', '.join(table.column_names)})"
            )
        try:
            found: dict[str, Any] = measure(probs, labels, bins=bins)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        found["intervals"] = intervals(probs, labels, bins=bins)
        if group is not None:
            found["groups"] = measure_groups(probs, labels, table[group].to_pylist(), bins=bins)
        figures[name] = json_safe(found)
    if as_json:
        print_json(figures)
        return
    interval_table(figures)
    if any(found["n"] < 200 for found in figures.values()):
        note("under 200 rows, calibration errors say little: look at the intervals")


def _from_files(paths: list[str]) -> dict[str, Any]:
    from calmix.training import read_predictions

    return {path: read_predictions(path) for path in paths}


def _from_model(model: str, files: list[str], columns: dict[str, str | None], quiet: bool) -> dict[str, Any]:
    from calmix.data import read_examples
    from calmix.models import load

    classifier = load(model)
    known = classifier.label_names or None
    sets = {file: read_examples(file, label_names=known, **columns) for file in files}  # type: ignore[arg-type]
    found = {}
    for file, examples in sets.items():
        with working_bar(Path(file).name, len(examples), quiet) as bar:
            found[file] = (classifier.probabilities(examples, progress=bar), examples.labels, examples.table)
    return found
