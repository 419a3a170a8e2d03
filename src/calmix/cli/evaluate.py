"""`calmix evaluate`: how good and how well calibrated predictions are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.cli.parsing import DropoutRate, Members, Passes, check_once, check_order, predictor, unfamiliar
from calmix.cli.showing import (
    interval_table,
    note,
    print_json,
    rare_table,
    unfamiliar_table,
    verdict_lines,
    working_bar,
)
from calmix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from calmix.data import Examples
    from calmix.models import Predictor

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[str | None, typer.Argument(help="Run folder or checkpoint; none with --predictions.")] = None,
    files: Annotated[list[str] | None, typer.Argument(help="Labelled files.")] = None,
    predictions: Annotated[
        list[str] | None,
        typer.Option(help="Predictions made anywhere: `label`, and p_NAME columns, or lists `probs` or `logits`."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column to measure each value of on its own, too; `label`: each class.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=FILE]",
            help="Data the model should not know, labels ignored: is it less sure there? Or gaussian-noise (images), "
            "random-tokens (texts), like the first file or FILE. Repeatable.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
    ensemble: Members = None,
    mc_dropout: Passes = None,
    dropout: DropoutRate = None,
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.", min=1)] = 15,
    out: Annotated[
        Path | None, typer.Option(help="Folder for figures, predictions and page. Default: evaluations/MODEL-HASH.")
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Write no report.html; without --out, nothing at all.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on stdout, nothing else there.")] = False,
) -> None:
    """Measure accuracy and calibration, with 95 % intervals.

    Example: `calmix evaluate run test.csv tweets.csv`, or `calmix evaluate --predictions mine.parquet`
    """
    if bool(predictions) == (model is not None):
        raise InputError("give a model and labelled files, or --predictions FILE, not both and not neither")
    if model is not None and not files:
        raise InputError(f"give labelled files to evaluate {model} on")

    from calmix.data.reading import check_there

    check_once(*(predictions or []), *(files or []))
    config: dict[str, Any] = {"command": "evaluate", "model": model or "predictions", "bins": bins}
    scores, apart = None, None
    if model is None:
        if ensemble or ood or mc_dropout is not None or dropout is not None:
            raise InputError("--ensemble, --mc-dropout and --ood are for models, not for --predictions")
        sources = _from_files(predictions or [], group)
    else:
        config |= {"ensemble": ensemble or None, "mc_dropout": mc_dropout, "dropout": dropout}
        asked = unfamiliar(ood or [])
        check_order("calmix evaluate", model, *(files or []))
        check_there(*(files or []), *(file for file in asked.values() if file))
        columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "label": label}
        tables = _ahead(model, files or [], asked, columns, group)
        classifier = predictor(model, ensemble, mc_dropout, dropout)
        columns["usual"] = classifier.columns
        sources = _from_model(classifier, files or [], columns, group, tables, as_json)
        if asked:
            config["ood"], scores, apart = _apart(classifier, sources, asked, columns, tables, as_json)
    figures = {name: _measured(name, found, bins) for name, found in sources.items()}
    if apart is not None:
        figures = {name: {**found, "ood": apart[name]} for name, found in figures.items()}
    wanted = out is not None or not no_report
    folder, page = _write(config, sources, figures, scores, out, no_report) if wanted else (None, None)
    if as_json:
        print_json(figures)
        return
    interval_table(figures)
    rare_table(figures)
    if apart is not None:
        unfamiliar_table(figures)
    _print_rest(folder, page)
    if any(found["n"] < 200 for found in figures.values()):
        note("under 200 rows, calibration errors say little: look at the intervals")
    if model is not None:
        _note_seen([model, *(ensemble or [])], sources)


def _print_rest(folder: Path | None, page: Path | None) -> None:
    """Print what is said of an evaluation that was kept, and where its page is."""
    if folder is not None:
        for line in verdict_lines(folder):
            print(line)
    if page is not None:
        print(f"page: {page}")


def _note_seen(models: list[str], sources: dict[str, Any]) -> None:
    """Tell of rows that a model has learnt by heart."""
    from calmix.training.correcting import trained_on

    for file, found in sources.items():
        seen = max(trained_on(model, found[5]) for model in models)
        if seen:
            note(
                f"{file}: {seen:,} of {len(found[5]):,} rows were in the training data, so that these scores are "
                "optimistic"
            )


def _measured(name: str, found: Any, bins: int) -> dict[str, Any]:
    """Return the figures of one file, and those of its groups."""
    from calmix.training import intervals, json_safe, measure, measure_groups
    from calmix.training.rare_classes import rare_classes

    probs, labels, groups, kept, *_ = found
    try:
        figures: dict[str, Any] = measure(probs, labels, bins=bins)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    figures["intervals"] = intervals(probs, labels, bins=bins)
    names = [column.removeprefix("p_") for column in kept.column_names if column.startswith("p_")]
    figures["rare"] = rare_classes(probs, labels, names)
    if groups is not None:
        figures["groups"] = measure_groups(probs, labels, groups, bins=bins)
    return dict(json_safe(figures))


def _write(
    config: dict[str, Any],
    sources: dict[str, Any],
    figures: dict[str, Any],
    scores: Any,
    out: Path | None,
    no_report: bool,
) -> tuple[Path, Path | None]:
    """Write the evaluation to its folder; return that, and its page, unless none is wanted."""
    from calmix.training.recording import evaluation_folder, record_evaluation

    config = {**config, "data": {name: found[4] for name, found in sources.items()}}
    folder = evaluation_folder(config) if out is None else out
    record_evaluation(folder, config, figures, {name: found[3] for name, found in sources.items()}, scores)
    if no_report:
        return folder, None
    from calmix.report import write_run_page

    return folder, write_run_page(folder)


# Both return, by file: probabilities, labels, the group of each row, the predictions to keep, a hash of the data; of a
# model, also the examples and what it said about them.
def _from_files(paths: list[str], group: str | None) -> dict[str, Any]:
    from calmix.training import read_predictions
    from calmix.training.folder import file_hash
    from calmix.training.recording import bare_predictions

    found = {}
    for path in paths:
        probs, labels, table = read_predictions(path)
        groups = None if group is None else _cells(table, path, group)
        found[path] = (probs, labels, groups, bare_predictions(probs, labels, table), file_hash(Path(path)))
    return found


def _ahead(
    model: str, files: list[str], asked: dict[str, str | None], columns: dict[str, Any], group: str | None
) -> dict[str, "pa.Table"]:
    """Return the tables that are given, once the columns of all of them have been found."""
    from calmix.data.reading import read_ahead

    tables = read_ahead(model, files, columns)
    if group is not None and not _is_class(group):
        for file, table in tables.items():
            _cells(table, file, group)
    others = [file for file in asked.values() if file and file not in tables]
    return tables | read_ahead(model, others, {**columns, "label": None}, labelled=False)


def _from_model(
    classifier: "Predictor",
    files: list[str],
    columns: dict[str, Any],
    group: str | None,
    known: dict[str, "pa.Table"],
    quiet: bool,
) -> dict[str, Any]:
    from calmix.data import read_table
    from calmix.data.reading import holds_table
    from calmix.models import read_for
    from calmix.training import prediction_table
    from calmix.training.unfamiliar import ask

    tables = {file: known.get(file) for file in files}
    if group is not None:  # a model of the hub has read none yet
        tables |= {file: read_table(file) for file in files if tables[file] is None and holds_table(file)}
    sets = {file: read_for(classifier, file, split="test", table=tables[file], **columns) for file in files}
    groups = {
        file: None if group is None else _groups(file, sets[file], columns, group, tables[file]) for file in files
    }
    found = {}
    for file, examples in sets.items():
        with working_bar(Path(file).name, len(examples), quiet) as bar:
            said = ask(classifier, examples, progress=bar)
        kept = prediction_table(examples, said.probs, label_names=classifier.label_names)
        found[file] = (said.probs, examples.labels, groups[file], kept, examples.digest(), examples, said)
    return found


def _groups(
    file: str, examples: "Examples", columns: dict[str, Any], group: str, table: "pa.Table | None"
) -> list[Any]:
    """Return the group of each row: its cell in a column that is called so in the file, or its class."""
    import pyarrow as pa

    from calmix.data.originals import original_table

    classes = pa.array([examples.label_names[k] if examples.label_names else str(k) for k in examples.labels])
    if table is None:
        rows = examples.table
        return _cells(rows if "label" in rows.column_names else rows.append_column("label", classes), file, group)
    given = {role: name for role, name in columns.items() if role != "usual"}
    rows, label = original_table(file, examples, {**given, "id": None}, usual=columns["usual"], table=table)
    rows = rows.set_column(rows.column_names.index(label), label, classes)
    if _is_class(group) and not any(_is_class(name) for name in rows.column_names):
        group = label
    return _cells(rows, file, group)


def _is_class(name: str) -> bool:
    return name.strip().casefold() == "label"


def _cells(table: "pa.Table", file: str, group: str) -> list[Any]:
    """Return the cells of the column to group by."""
    from calmix.data.columns import named_column
    from calmix.data.origin import Origin

    return list(table[named_column(table, Origin(file), group, "--group")].to_pylist())


def _apart(
    classifier: "Predictor",
    sources: dict[str, Any],
    asked: dict[str, str | None],
    columns: dict[str, Any],
    tables: dict[str, "pa.Table"],
    quiet: bool,
) -> tuple[dict[str, str], Any, dict[str, Any]]:
    """Return a hash of each unfamiliar data set, all scores, and for each file how far they are apart from its own."""
    from calmix.training.unfamiliar import ask, score_table, separation, unfamiliar_sets

    first = next(iter(sources.values()))[5]
    outside = unfamiliar_sets(asked, classifier, first, columns={**columns, "label": None}, tables=tables)
    said = {}
    for name, examples in outside.items():
        with working_bar(name, len(examples), quiet) as bar:
            said[name] = ask(classifier, examples, progress=bar)
    apart = {
        file: {name: separation(found[6], other) for name, other in said.items()} for file, found in sources.items()
    }
    everywhere = {file: found[6] for file, found in sources.items()} | said
    whole = [("model", data, each) for data, each in everywhere.items()]
    inside = {**dict.fromkeys(sources, True), **dict.fromkeys(said, False)}
    return {name: examples.digest() for name, examples in outside.items()}, score_table(whole, inside), apart
