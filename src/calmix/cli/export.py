"""`calmix export`: the calibrated model for another runtime."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.showing import guarantee_lines, note, print_json

__all__ = ["export"]


class _Format(StrEnum):
    onnx = "onnx"


def export(
    model: Annotated[str, typer.Argument(help="Run folder or checkpoint.")],
    out: Annotated[Path, typer.Option(help="New folder for the exported model.")],
    check: Annotated[
        str | None,
        typer.Option(
            help="Texts or images to compare on, best labelled; without it, of single texts, the shipped messages."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
    to: Annotated[_Format, typer.Option(help="The format.")] = _Format.onnx,
    int8: Annotated[bool, typer.Option("--int8", help="Also write quantised weights, and measure them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on stdout, nothing else there.")] = False,
) -> None:
    """Export a model to ONNX, its temperature included, and check it against the original on real texts or images.

    Example: `calmix export run --check test.csv --int8 --out run-onnx`
    """
    from calmix.data import read_examples
    from calmix.data.corpus import corpus_path
    from calmix.data.reading import check_there
    from calmix.errors import InputError
    from calmix.models import load_one, read_for, reads_pixels
    from calmix.training import export_onnx
    from calmix.training.correcting import trained_on

    if check is not None:
        check_there(check)
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "label": label}
    classifier = load_one(model)
    if classifier.beside.dropout is not None:
        raise InputError(f"{model}: predicts with MC-dropout, which no exported graph does")
    if check is None and reads_pixels(classifier.model):
        raise InputError("give images to check a model of images on: --check FOLDER")
    if check is None and classifier.multiple_choice:
        raise InputError("give texts with choices to check a multiple-choice model on: --check FILE")
    if check is None:
        examples = read_examples(corpus_path("test"), labelled=False)
        try:
            classifier.check(examples)
        except InputError:
            raise InputError(f"{model}: is not for single texts, as the shipped ones are: give --check FILE") from None
    else:
        examples = read_for(classifier, check, labelled=None, split="test", **columns)
    seen = trained_on(model, examples)
    figures = export_onnx(classifier, examples, out=out, int8=int8, held_out=not seen)
    if as_json:
        print_json({"folder": str(out), **figures})
        return
    what = "images" if examples.kind == "image" else "texts"
    _print_figures(figures, what)
    _note_figures(figures, what, seen, promises=classifier.beside.threshold is not None)
    print(f"model: {out}")


def _print_figures(figures: dict[str, Any], what: str) -> None:
    """Print how far each graph is from the original."""
    for name in ("onnx", "int8"):
        if name not in figures:
            continue
        found = figures[name]
        print(
            f"{name}: {found['bytes'] / 2**20:.1f} MiB; on {figures['n']:,} {what} its probabilities differ by "
            f"{found['largest_difference']:.2g} at most, {found['changed_predictions']} predictions change"
        )
        if "figures" in found:
            was, now = figures["original"]["figures"], found["figures"]
            print(f"  accuracy {was['accuracy']:.1%} → {now['accuracy']:.1%}, ECE {was['ece']:.1%} → {now['ece']:.1%}")
        if "changed_decisions" in found:
            print(f"  with the model's threshold, {found['changed_decisions']:,} decisions to accept change")
        for line in guarantee_lines(found):
            print(f"  with a threshold of its own: {line}")


def _note_figures(figures: dict[str, Any], what: str, seen: int, *, promises: bool) -> None:
    """Say what a graph lacks, and what quantised weights make of confidence and of a threshold."""
    if figures["left_out"] is not None:
        left = ", accuracy and ECE on the left are with it" if "original" in figures else ""
        note(
            f"{figures['left_out']} is not in the graph, only calmix applies it: probabilities are compared without it"
            f"{left}"
        )
    if seen:
        note(f"{seen:,} of {figures['n']:,} {what} were in the training data, so that these scores are optimistic")
    if "int8" not in figures:
        return
    measured = "see its figures above" if "original" in figures else "give labelled rows with --check to measure them"
    note(f"model-int8.onnx: quantised weights change confidences, which the temperature was not fitted to: {measured}")
    if promises and "guarantee" in figures["int8"]:
        note(
            "calmix.json has the threshold of model.onnx, calmix-int8.json that of model-int8.onnx, fitted to the rows "
            "of --check: judge it on others"
        )
    elif promises:
        why = "some rows of --check were in the training data" if seen else "the rows of --check are not labelled"
        note(f"the threshold in calmix.json is for model.onnx alone; model-int8.onnx has none, since {why}")
