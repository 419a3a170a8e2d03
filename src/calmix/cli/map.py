"""`calmix map`: a data map of a training set, and the labels in it that look wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.cli.parsing import (
    Augment,
    FilterOn,
    FilterWording,
    Head,
    Judged,
    Optimizer,
    Pooling,
    Precision,
    Record,
    Schedule,
    check_apart,
    weights,
)
from calmix.cli.showing import note, print_json, training_bar

if TYPE_CHECKING:
    import pyarrow as pa

    from calmix.data import Examples
    from calmix.dynamics import Dynamics
    from calmix.training.surveying import Survey

__all__ = ["map_"]


def map_(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="Labelled file, or a hub data set.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the map; an unfinished one goes on. With --apply: file for the table.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Folder or hub name of a pretrained model, or `minilm`. For images also resnet18, resnet34, resnet50, "
            "resnext101 and vgg16, which begin with random weights: second defaults."
        ),
    ] = "minilm",
    head: Annotated[Head | None, typer.Option(help="Fit the head before, or draw it. Default: as in train.")] = None,
    pooling: Annotated[
        Pooling | None, typer.Option(help="What a new head reads: the mean of a text's tokens, or the first.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the data; the map is read off all of them. Default: 3 to 20, or 30."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per update. Default: 32, with few rows 16, or 128.")
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="sgd has Nesterov momentum. Default: adamw, or sgd.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate. Default: 5e-5, or 0.02.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay. Default: 0, or 5e-4.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of steps with a rising rate. Default: 0.1, or 0.")] = None,
    schedule: Annotated[
        Schedule | None, typer.Option(help="The learning rate after warm-up. Default: linear, or steps.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm; 0: any. Default: 1, or 0.")] = None,
    accumulate: Annotated[int, typer.Option(help="Parts to cut a batch into, to save memory.")] = 1,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Recompute activations, to save memory.")
    ] = False,
    precision: Annotated[
        Precision, typer.Option(help="auto: bf16 where the GPU, or processor, is faster with it.")
    ] = Precision.auto,
    class_weights: Annotated[str | None, typer.Option(help="`balanced`, or NAME=WEIGHT,NAME=WEIGHT.")] = None,
    max_length: Annotated[int, typer.Option(help="Tokens per text at most.")] = 256,
    image_size: Annotated[
        int | None,
        typer.Option(help="Height and width to scale images to. Default: what the model says, or their own."),
    ] = None,
    augment: Annotated[Augment, typer.Option(help="Move and mirror images in training.")] = Augment.crop_flip,
    merge_labels: Annotated[
        bool | None,
        typer.Option(
            "--merge-labels/--keep-labels",
            help="Of labels that differ in case or blanks alone, make one, or map them as different. Default: stop.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    filtered: Annotated[
        bool, typer.Option("--filter", help="More runs, with threshold samples, find mislabelled ones (TDMixUp).")
    ] = False,
    judged: Annotated[
        Judged, typer.Option("--judge", help="The region that --filter judges; both takes twice as many runs.")
    ] = Judged.easy,
    percentile: Annotated[float, typer.Option(help="Of the threshold samples' AUM, for --filter.")] = 80.0,
    fraction: Annotated[
        float, typer.Option(help="Share of the data in a region that --filter judges: the recipe's or the subset's.")
    ] = 0.33,
    filter_wording: Annotated[
        FilterWording,
        typer.Option(
            help="Threshold samples of --filter. balanced: n / (c + 1) of the region's n samples of c classes become a "
            "class that does not exist, two runs; literal: so many of each class get any other label, c + 1 runs."
        ),
    ] = FilterWording.balanced,
    filter_on: Annotated[
        FilterOn,
        typer.Option(help="What the runs of --filter train on: the judged region, or all samples (drops hardly any)."),
    ] = FilterOn.region,
    record: Annotated[
        Record, typer.Option(help="Record the training steps, or a pass after each epoch (a third more time).")
    ] = Record.training,
    checkpoint_minutes: Annotated[float, typer.Option(help="Save state this often.")] = 10.0,
    clean: Annotated[
        Path | None, typer.Option(help="Also write TRAIN without the rows whose label looks wrong.")
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(help="Decisions made in the map's page: write TRAIN with them applied, and train nothing."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.")] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None,
    id: Annotated[str | None, typer.Option(help="Column with a unique id.")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on stdout, nothing else there.")] = False,
) -> None:
    """Train plainly, record what training reveals about each sample, and draw the map.

    Writes datamap.parquet (confidence, variability, AUM, region, suspected label of each sample), label_issues.csv
    (the suspects, worst first), datamap.png and .svg, and report.html, in which samples can be read and marked.
    Guided recipes take the folder: `calmix train --dynamics`. Afterwards, `calmix map TRAIN --apply decisions.csv
    --out clean.csv` writes the table as it was decided.
    """
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "choices": choices, "label": label, "id": id}
    if apply is not None:
        _apply(train, apply, out, columns, as_json, unwanted=filtered or clean is not None)
        return
    from calmix.data import read_examples
    from calmix.data.remembering import remembered_columns
    from calmix.data.tables import check_writable
    from calmix.errors import InputError
    from calmix.training import FinishedRun, finished_run, processes, survey
    from calmix.training.mapping import known_dynamics

    if clean is not None:
        check_writable(clean)
        check_apart("--clean", clean, train)
        if out.absolute() in clean.absolute().parents:
            raise InputError(f"--clean {clean}: is inside the map's folder; give another place")
    usual = remembered_columns(out)  # of a map that is finished
    examples = read_examples(train, **columns, usual=usual)
    if clean is not None:
        check_writable(clean, images=examples.kind == "image")

    def complete(done: "Survey") -> None:
        _draw(done)
        if clean is not None:
            _write_clean(train, examples, columns, usual, done.dynamics, clean)

    try:
        with training_bar(quiet=as_json) as bar:
            figures = survey(
                examples,
                out=out,
                model=model,
                head=None if head is None else head.value,
                pooling=None if pooling is None else pooling.value,
                epochs=epochs,
                batch_size=batch_size,
                optimizer=None if optimizer is None else optimizer.value,
                lr=lr,
                weight_decay=weight_decay,
                warmup=warmup,
                schedule=None if schedule is None else schedule.value,
                clip=clip,
                accumulate=accumulate,
                gradient_checkpointing=gradient_checkpointing,
                precision=precision.value,
                class_weights=weights(class_weights),
                max_length=max_length,
                image_size=image_size,
                augment=augment.value,
                seed=seed,
                filtered=filtered,
                judged=judged.value,
                percentile=percentile,
                fraction=fraction,
                filter_wording=filter_wording.value,
                filter_on=filter_on.value,
                record=record.value,
                checkpoint_minutes=checkpoint_minutes,
                columns={role: name for role, name in columns.items() if name is not None},
                merge_labels=merge_labels,
                on_progress=None if bar is None else lambda _stage, progress: bar(progress),
                on_done=complete,
            ).figures
    except FinishedRun:
        if clean is None and (no_report or (out / "report.html").is_file()):
            raise
        figures = finished_run(out).metrics  # it was stopped before its page was there, or is asked for the table alone
        if clean is not None and processes().is_main_process:
            _write_clean(
                train, examples, columns, usual, known_dynamics(out, examples, spelt_alike=True).dynamics, clean
            )
    if not processes().is_main_process:
        return
    page = None
    if not no_report:
        from calmix.report import write_run_page

        page = write_run_page(out)
    if as_json:
        print_json({"folder": str(out), **figures})
        return
    _print(figures, out, clean, page)


def _print(figures: dict[str, Any], out: Path, clean: Path | None, page: Path | None) -> None:
    for line in figures["notes"]:
        note(line)
    counted = "1 epoch" if figures["epochs"] == 1 else f"{figures['epochs']} epochs"
    print(f"{figures['n']:,} samples mapped over {counted}, recorded on the {figures['recorded_on']}")
    if figures.get("suspects_withheld"):
        print("whether labels look wrong cannot be told: the model knows its training data too little, see the note")
    else:
        print(f"{figures['label_issues']:,} labels look wrong: {out / 'label_issues.csv'}")
    for one in (figures.get("filter") or {}).get("regions", []):
        print(
            f"filter: {one['dropped']:,} of {one['judged']:,} {one['region']} samples are below the threshold samples "
            "and marked as not kept"
        )
    if clean is not None:
        withheld = " (none was found: it has every row)" if figures.get("suspects_withheld") else ""
        print(f"table without the suspects{withheld}: {clean}")
    if page is not None:
        print(f"page, to read and mark samples in: {page}")
    print(f"map: {out / 'datamap.parquet'}" + (f", {out / 'datamap.png'}" if (out / "datamap.png").is_file() else ""))


def _draw(done: "Survey") -> None:
    from calmix.report import draw_datamap, prepare_datamap, save_figure

    try:
        figure = draw_datamap(prepare_datamap(done.dynamics))
    except ImportError:
        note("no figure: it needs matplotlib (pip install 'calmix[report]')")
        return
    for ending in ("png", "svg"):
        save_figure(figure, done.folder / f"datamap.{ending}")


def _write_clean(
    train: str,
    examples: "Examples",
    columns: dict[str, Any],
    usual: dict[str, str],
    known: "Dynamics",
    clean: Path,
) -> None:
    import numpy as np

    from calmix.data.originals import original_table, write_copy
    from calmix.dynamics import label_issues

    table, _ = original_table(train, examples, columns, usual=usual)
    write_copy(table.take(np.flatnonzero(~label_issues(known).flagged)), clean, of=train)


def _apply(train: str, decisions: Path, out: Path, columns: dict[str, Any], as_json: bool, *, unwanted: bool) -> None:
    """Write the table with decisions applied."""
    from calmix.data import apply_decisions, read_decisions, read_table
    from calmix.data.decisions import decided_columns
    from calmix.data.originals import original_table, write_copy
    from calmix.data.reading import holds_table
    from calmix.data.remembering import remembered_columns
    from calmix.data.tables import check_writable
    from calmix.errors import InputError

    if unwanted:
        raise InputError("--apply writes a table and maps nothing: leave out --filter and --clean")
    check_writable(out)
    check_apart("--out", out, train, decisions)
    if out.exists():
        raise InputError(f"--out {out}: is there already; give another file, or remove it")
    usual = decided_columns(decisions) or remembered_columns(decisions.parent)
    given = read_table(train) if holds_table(train) else None
    examples = _read_mapped(train, columns, usual, given)
    check_writable(out, images=examples.kind == "image")
    table, label = original_table(train, examples, columns, usual=usual, table=given)
    applied = apply_decisions(table, examples, read_decisions(decisions, examples), label=label)
    if applied.table.num_rows == 0:
        raise InputError(f"{decisions}: drops every row of {train}; nothing would be left to write")
    write_copy(applied.table, out, of=train)
    counts = {"relabelled": applied.relabelled, "dropped": applied.dropped, "kept": applied.kept}
    if as_json:
        print_json({"out": str(out), "rows": applied.table.num_rows, **counts})
        return
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    print(f"{applied.table.num_rows:,} of {len(examples):,} rows: {out}")


def _read_mapped(train: str, columns: dict[str, Any], usual: dict[str, str], table: "pa.Table | None") -> "Examples":
    """Return the examples in a table that was mapped; an error says that columns must be named as for the map."""
    from calmix.data import read_examples
    from calmix.errors import InputError

    try:
        return read_examples(train, **columns, usual=usual, table=table)
    except InputError as error:
        raise InputError(f"{error}; if the map was made with --text, --label or --id, give the same here") from None
