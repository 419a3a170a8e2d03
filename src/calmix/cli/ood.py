"""`calmix ood`: which of several models notices data that it should not know."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.cli.parsing import DropoutRate, Passes, unfamiliar
from calmix.cli.showing import note, print_json, separation_table, working_bar
from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.models import Predictor

__all__ = ["ood"]


def ood(
    models: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]RUN...", help="Runs or checkpoints; those of one name are seeds of one method."),
    ],
    test: Annotated[str, typer.Option(help="Labelled data like that they were trained on.")],
    ood: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=FILE]",
            help="Data they should not know, labels ignored; or random-tokens (texts), as long as those of TEST or "
            "FILE, or gaussian-noise (images), with the mean and variance of TEST or FILE: Thulasidasan et al. have "
            "the training set's. Repeatable.",
        ),
    ],
    score: Annotated[
        str, typer.Option(help="What to show: max_probability, negative_entropy, margin or negative_energy.")
    ] = "max_probability",
    mc_dropout: Passes = None,
    dropout: DropoutRate = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
    seed: Annotated[int, typer.Option(help="Of the data that is made.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: evaluations/ood-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on stdout, nothing else there.")] = False,
) -> None:
    """Compare how well models tell unfamiliar data: as trained, calibrated (+TS), and with MC-dropout.

    Example: `calmix ood plain=run-a mixup=run-b --test test.csv --ood random-tokens --ood news=news.csv`
    """
    from calmix.data.reading import check_there, read_ahead
    from calmix.models import identity, load, read_for
    from calmix.models.classifier import checkpoint_of
    from calmix.training.comparing import compare_unfamiliar, comparison_table
    from calmix.training.recording import evaluation_folder, record_unfamiliar
    from calmix.training.unfamiliar import SCORES, score_table, unfamiliar_sets

    if score not in SCORES:
        raise InputError(f"--score is one of {', '.join(SCORES)}, not {score!r}")
    if dropout is not None and mc_dropout is None:
        raise InputError("--dropout is the rate of --mc-dropout N: give both")
    named = [_named(word) for word in models]
    asked = unfamiliar(ood)
    check_there(test, *(file for file in asked.values() if file))
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices}
    tables = read_ahead(named[0][1], [test], {**columns, "label": label})
    others = read_ahead(named[0][1], [file for file in asked.values() if file], columns, labelled=False)
    first = load(named[0][1])
    columns["usual"] = first.columns
    examples = read_for(first, test, label=label, split="test", table=tables.get(test), **columns)
    outside = unfamiliar_sets(asked, first, examples, columns=columns, tables=others, seed=seed)
    # Everything that can be wrong is, before the first of many predictions.
    loaded: list[tuple[str, str, Predictor]] = []
    for name, run in named:
        model = load(run).to("cpu")
        for each in (examples, *outside.values()):
            model.check(each)
        if model.label_names != first.label_names:
            raise InputError(f"{run}: its labels are not those of {named[0][1]}, in the same order")
        loaded.append((name, run, model))
    config = {
        "command": "ood",
        "model": "ood",
        "models": [[name, identity(checkpoint_of(run))] for name, run in named],
        "mc_dropout": mc_dropout,
        "dropout": dropout,
        "data": {data: each.digest() for data, each in {"test": examples, **outside}.items()},
    }
    passes = (2 if mc_dropout is None else 3) * len(loaded)
    rows = len(examples) + sum(map(len, outside.values()))
    with working_bar("predicting", passes * rows, quiet=as_json) as bar:
        found = compare_unfamiliar(loaded, examples, outside, passes=mc_dropout, rate=dropout, progress=bar)
    folder = evaluation_folder(config) if out is None else out
    inside = {"test": True, **dict.fromkeys(outside, False)}
    scores = score_table(found.said, inside)
    record_unfamiliar(folder, config, found.figures, scores, comparison_table(found.figures))
    picture = _picture(folder, scores)
    if as_json:
        print_json({"folder": str(folder), "ood": found.figures})
        return
    shown = []
    for who, about in found.figures.items():
        for data, measured in about["data"].items():
            if score in measured:
                shown.append(((who, data), measured["mean_confidence"], measured[score]))
            else:
                note(f"{who}: has no {score}")
    separation_table(("model", "unfamiliar"), shown)
    for line in (f"scores: {folder / 'ood-scores.parquet'}", f"figures: {folder / 'ood.csv'}"):
        print(line)
    if picture is not None:
        print(f"picture: {picture}")


def _named(word: str) -> tuple[str, str]:
    """Return a run's name and folder; a folder alone is called by its own name."""
    name, equals, folder = word.partition("=")
    if not equals:
        return Path(word).name, word
    if not name.strip() or not folder:
        raise InputError(f"models are given as RUN or NAME=RUN, not {word!r}")
    return name.strip(), folder


def _picture(folder: Path, scores: Any) -> Path | None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return None
    from calmix.report import draw_unfamiliar, prepare_unfamiliar, save_figure

    save_figure(draw_unfamiliar(prepare_unfamiliar(scores)), folder / "ood.png")
    return folder / "ood.png"
