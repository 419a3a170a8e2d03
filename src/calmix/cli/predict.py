"""`calmix predict`: labels and calibrated probabilities for a file of texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calmix.cli.parsing import DropoutRate, Members, Passes, predictor
from calmix.cli.showing import note, working_bar
from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.data import Examples

__all__ = ["predict"]


def predict(
    model: Annotated[str, typer.Argument(help="Run folder or checkpoint.")],
    file: Annotated[str, typer.Argument(help="CSV, TSV, JSONL or Parquet file with the texts; or a folder of images.")],
    out: Annotated[Path | None, typer.Option(help="CSV, JSONL or Parquet file; without it, CSV on stdout.")] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    abstain: Annotated[
        bool,
        typer.Option("--abstain", help="Say which predictions to accept and which labels are possible (--guarantee)."),
    ] = False,
    id: Annotated[str | None, typer.Option(help="Column with a unique id.")] = None,
    precision: Annotated[
        Literal["fp32", "bf16"],
        typer.Option(help="bf16 is faster where the hardware has it, and changes the third digit."),
    ] = "fp32",
    ensemble: Members = None,
    mc_dropout: Passes = None,
    dropout: DropoutRate = None,
) -> None:
    """Predict: id, label, confidence, and one probability per class."""
    from calmix.data import read_examples, write_tables
    from calmix.data.reading import check_there
    from calmix.data.remembering import remembered_columns
    from calmix.data.tables import check_writable, print_csv

    if out is not None:
        check_writable(out)
    check_there(file)
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "id": id}

    def read(usual: Mapping[str, str]) -> "Examples":
        return read_examples(file, labelled=False, split="test", usual=usual, **columns)

    # A file is read before a model is loaded, which takes longer; what a model on the hub remembers is in it.
    early = read(remembered_columns(model)) if Path(model).is_dir() else None
    classifier = predictor(model, ensemble, mc_dropout, dropout, precision)
    examples = read(classifier.columns) if early is None else early
    if abstain and classifier.beside.threshold is None:
        raise InputError(f"{model}: has no threshold to abstain by: train or calibrate it with --guarantee")
    classifier.check(examples)
    from calmix.training import prediction_tables

    with working_bar("predicting", len(examples), quiet=False) as bar:
        tables = prediction_tables(examples, classifier, guarantees=abstain, progress=bar)
        if out is None:
            print_csv(tables)
        else:
            write_tables(tables, out)
    if abstain and classifier.beside.threshold is not None and classifier.beside.threshold.threshold is None:
        note("nothing is accepted: the accuracy asked for with --guarantee could not be promised")
