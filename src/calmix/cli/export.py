"""`calmix export`: the calibrated model for another runtime."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.showing import note, print_json

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
    figures = export_onnx(classifier, examples, out=out, int8=int8)
    if as_json:
        print_json({"folder": str(out), **figures})
        return
    what = "images" if examples.kind == "image" else "texts"
    for name in ("onnx", "int8"):
        if name in figures:
            found = figures[name]
            print(
                f"{name}: {found['bytes'] / 2**20:.1f} MiB; on {figures['n']:,} {what} its probabilities differ by "
                f"{found['largest_difference']:.2g} at most, {found['changed_predictions']} predictions change"
            )
            if "figures" in found:
                was, now = figures["original"]["figures"], found["figures"]
                print(
                    f"  accuracy {was['accuracy']:.1%} → {now['accuracy']:.1%}, ECE {was['ece']:.1%} → {now['ece']:.1%}"
                )
    if figures["left_out"] is not None:
        left = ", accuracy and ECE on the left are with it" if "original" in figures else ""
        note(
            f"{figures['left_out']} is not in the graph, only calmix applies it: probabilities are compared without it"
            f"{left}"
        )
    print(f"model: {out}")
