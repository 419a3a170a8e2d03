"""`calmix predict`: labels and calibrated probabilities for a file of texts, or for images."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calmix.cli.parsing import DropoutRate, Members, Passes, check_apart, check_order, predictor
from calmix.cli.showing import note, working_bar
from calmix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from calmix.data import Examples

__all__ = ["predict"]


def predict(
    model: Annotated[str, typer.Argument(help="Run folder or checkpoint.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="CSV, TSV, JSONL or Parquet file with the texts; or a folder of images, or image files.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="CSV, JSONL or Parquet file; without it, CSV on stdout.")] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    abstain: Annotated[
        bool,
        typer.Option("--abstain", help="Say which predictions to accept and which labels are possible (--guarantee)."),
    ] = False,
    id: Annotated[str | None, typer.Option(help="Column with a unique id.")] = None,
    with_columns: Annotated[
        bool, typer.Option("--with-columns", help="Write the columns of FILE, too, before the predictions.")
    ] = False,
    precision: Annotated[
        Literal["fp32", "bf16"],
        typer.Option(help="bf16 is faster where the hardware has it, and changes the third digit."),
    ] = "fp32",
    ensemble: Members = None,
    mc_dropout: Passes = None,
    dropout: DropoutRate = None,
) -> None:
    """Predict: id, label, confidence, and one probability per class.

    Example: `calmix predict run new.csv --out answers.csv`, or `calmix predict run one.png other.png`
    """
    from calmix.data import write_tables
    from calmix.data.reading import check_there, read_files
    from calmix.data.remembering import remembered_columns
    from calmix.data.tables import check_writable, print_csv

    if out is not None:
        check_writable(out)
        check_apart("--out", out, *files)
    if abstain and ensemble:
        raise InputError(
            f"--abstain: the threshold of a single run is not used for an ensemble: calibrate {model} with --ensemble "
            "and --guarantee, which gives it one of its own, and predict with the folder that comes of it"
        )
    check_order("calmix predict", model, *files)
    check_there(*files)
    own = _own_columns(files) if with_columns else None
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "id": id}

    def read(usual: Mapping[str, str]) -> "Examples":
        return read_files(files, labelled=False, split="test", usual=usual, table=own, **columns)

    # A file is read before a model is loaded, which takes longer; what a model on the hub remembers is in it.
    early = read(remembered_columns(model)) if Path(model).is_dir() else None
    classifier = predictor(model, ensemble, mc_dropout, dropout, precision)
    examples = read(classifier.columns) if early is None else early
    if abstain and classifier.beside.threshold is None:
        how = "train or calibrate it with --guarantee"
        if mc_dropout is not None:
            how = "one of a single pass is not used; calibrate it with --mc-dropout and --guarantee"
        raise InputError(f"{model}: has no threshold to abstain by: {how}")
    classifier.check(examples)
    from calmix.training import prediction_tables

    with working_bar("predicting", len(examples), quiet=False) as bar:
        tables = prediction_tables(examples, classifier, guarantees=abstain, progress=bar)
        tables = tables if own is None else _beside(own, tables)
        if out is None:
            print_csv(tables)
        else:
            write_tables(tables, out)
    if out is not None:
        note(f"{len(examples):,} {'row' if len(examples) == 1 else 'rows'}: {out}")
    if abstain and classifier.beside.threshold is not None and classifier.beside.threshold.threshold is None:
        note("nothing is accepted: the accuracy asked for with --guarantee could not be promised")


def _own_columns(files: list[str]) -> "pa.Table":
    """Return the table as it is; refuse what has none, or none that every format holds."""
    import pyarrow as pa

    from calmix.data import read_table
    from calmix.data.reading import holds_table

    file = files[0]
    if len(files) > 1 or not holds_table(file):
        raise InputError(f"{file}: is no table, so --with-columns has nothing to write")
    table = read_table(file)
    if any(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) for kind in table.schema.types):
        raise InputError(f"{file}: has bytes in it, which --with-columns does not copy")
    return table


def _beside(own: "pa.Table", tables: Iterable["pa.Table"]) -> Iterator["pa.Table"]:
    """Yield predictions after the columns of their rows; one called as a prediction's is gets an underscore."""
    import pyarrow as pa

    start = 0
    for table in tables:
        part = own.slice(start, table.num_rows)
        start += table.num_rows
        names: dict[str, None] = {}
        for name in part.column_names:
            free = name
            while free in table.column_names or free in names or (free != name and free in part.column_names):
                free += "_"
            names[free] = None
        yield pa.Table.from_arrays([*part.columns, *table.columns], names=[*names, *table.column_names])
