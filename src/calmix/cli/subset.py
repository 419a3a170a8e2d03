"""`calmix subset`: a region of the data map as a table of its own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.parsing import check_apart

__all__ = ["subset"]


class _Take(StrEnum):
    easy = "easy"
    ambiguous = "ambiguous"
    both = "both"
    hard = "hard"


def subset(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="The labelled file that was mapped.")],
    dynamics: Annotated[str, typer.Option(help="Its map, or a run that recorded one.")],
    out: Annotated[Path, typer.Option(help="CSV, JSONL or Parquet file for the subset.")],
    take: Annotated[_Take, typer.Option(help="Which region; both: easy and ambiguous.")] = _Take.both,
    fraction: Annotated[float, typer.Option(help="Share of the data in a region.")] = 0.33,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="Leave out what the map's AUM filter dropped (`calmix map --filter`).")
    ] = False,
    id: Annotated[str | None, typer.Option(help="Column with a unique id.")] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
) -> None:
    """Write the easy, ambiguous or hard samples of a training set as a table to train on.

    Park & Caragea (NAACL 2022), table 1: a third each, with and without the AUM filter.
    """
    from calmix.data import read_examples
    from calmix.data.originals import original_table, write_copy
    from calmix.data.remembering import remembered_columns
    from calmix.data.tables import check_writable
    from calmix.dynamics.cartography import check_fraction
    from calmix.errors import InputError
    from calmix.training.mapping import check_recorded, known_dynamics, region_rows

    check_writable(out)
    check_apart("--out", out, train)
    if out.exists():
        raise InputError(f"--out {out}: is there already; give another file, or remove it")
    check_recorded(dynamics)
    check_fraction(fraction, "--fraction")
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "label": label, "id": id}
    usual = remembered_columns(dynamics)
    examples = read_examples(train, **columns, usual=usual)
    check_writable(out, images=examples.kind == "image")
    known = known_dynamics(dynamics, examples, spelt_alike=True)
    try:
        rows = region_rows(known, take.value, fraction=fraction, filtered=filtered)
    except InputError as error:
        raise InputError(f"{dynamics}: {error}") from None
    if len(rows) == 0:
        raise InputError(f"{dynamics}: no sample of {train} is in that region")
    table, _ = original_table(train, examples, columns, usual=usual)
    write_copy(table.take(rows), out, of=train)
    print(f"{len(rows):,} of {len(examples):,} samples: {out}")
