"""`calmix train`: from labelled texts or images to a calibrated checkpoint."""

import inspect
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmix.cli.parsing import (
    Augment,
    Head,
    Optimizer,
    Pooling,
    Precision,
    Record,
    Schedule,
    named_files,
    pairs,
    share,
    weights,
)
from calmix.cli.showing import (
    figures_table,
    generations_table,
    guarantee_lines,
    note,
    plain,
    print_json,
    training_bar,
    verdict_lines,
)

if TYPE_CHECKING:
    from calmix.training import Run

__all__ = ["learn", "train", "with_options_of"]

Command = Callable[..., None]

_DATA, _TRAINING, _RUN = "Data", "Training", "Run"


class _Select(StrEnum):
    nll_ts = "nll-ts"
    nll = "nll"
    accuracy = "accuracy"
    mcc = "mcc"
    none = "none"


def train(
    train: Annotated[
        str,
        typer.Argument(metavar="TRAIN", help="CSV, TSV, JSONL or Parquet file, folder of images, or a hub data set."),
    ],
    dev: Annotated[
        str | None, typer.Option(help="Data to choose the epoch and the temperature by.", rich_help_panel=_DATA)
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Held-out test data: used once, at the end.", rich_help_panel=_DATA)
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Out-of-domain data to judge by. Repeatable.", rich_help_panel=_DATA),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.", rich_help_panel=_DATA)] = None,
    text_b: Annotated[str | None, typer.Option(help="Column with a pair's second text.", rich_help_panel=_DATA)] = None,
    choices: Annotated[str | None, typer.Option(help="Column with the choices.", rich_help_panel=_DATA)] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label.", rich_help_panel=_DATA)] = None,
    id: Annotated[str | None, typer.Option(help="Column with a unique id.", rich_help_panel=_DATA)] = None,
    votes: Annotated[
        str | None, typer.Option(help="Column with label distributions, used as soft targets.", rich_help_panel=_DATA)
    ] = None,
    dev_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of TRAIN split off as dev data when --dev is not given. Default: 0.1.", rich_help_panel=_DATA
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="In place of dev data, train so many networks more, each without a part of TRAIN that it then "
            "predicts. Default: 3 below 1,000 rows or 10 a class; 0: never.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    merge_labels: Annotated[
        bool | None,
        typer.Option(
            "--merge-labels/--keep-labels",
            help="Of labels that differ in case or blanks alone, make one, or train them as different. Default: stop.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option(help="Tokens per text at most; longer ones are cut.", rich_help_panel=_DATA)
    ] = 256,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Height and width to scale images to. Default: what the model says, or their own if it is small.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    augment: Annotated[
        Augment, typer.Option(help="Move and mirror images in training.", rich_help_panel=_DATA)
    ] = Augment.crop_flip,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--keep",
            help="Decode images anew in every epoch, or keep their pixels. Default: keep, if memory holds them.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    class_weights: Annotated[
        str | None, typer.Option(help="`balanced`, or NAME=WEIGHT,NAME=WEIGHT.", rich_help_panel=_DATA)
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Folder or hub name of a pretrained model, `minilm`, or `sentence-cnn`. For images also resnet18, "
            "resnet34, resnet50, resnext101 and vgg16, which begin with random weights: second defaults.",
            rich_help_panel=_TRAINING,
        ),
    ] = "minilm",
    vectors: Annotated[
        str | None,
        typer.Option(help="Word vectors for sentence-cnn: GloVe text, .xz, .gz or .zip.", rich_help_panel=_TRAINING),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Training method: see `calmix recipes`, or FILE.py:FUNCTION.", rich_help_panel=_TRAINING)
    ] = "erm",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the recipe.", rich_help_panel=_TRAINING),
    ] = None,
    head: Annotated[
        Head | None,
        typer.Option(
            help="Fit the head to the network's features before fine-tuning, or draw it. Default: fitted, where "
            "weights are pretrained.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    pooling: Annotated[
        Pooling | None,
        typer.Option(
            help="What a new head reads: the mean of a text's tokens, or the first. Default: mean with a fitted head.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the data; 0: fit the head alone. Default: 3, with few rows up to 20, or 30.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples per update, over all processes. Default: 32, with few rows 16; images from scratch to 128.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(help="sgd has Nesterov momentum. Default: adamw, or sgd.", rich_help_panel=_TRAINING),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate. Default: 5e-5 for networks 384 wide, less for wider ones, twice that with few "
            "rows or many classes; or 0.02.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay. Default: 0, or 5e-4.", rich_help_panel=_TRAINING)
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(help="Share of steps with a rising rate. Default: 0.1, or 0.", rich_help_panel=_TRAINING),
    ] = None,
    schedule: Annotated[
        Schedule | None,
        typer.Option(help="The learning rate after warm-up. Default: linear, or steps.", rich_help_panel=_TRAINING),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest gradient norm; 0: any. Default: 1, or 0.", rich_help_panel=_TRAINING)
    ] = None,
    accumulate: Annotated[
        int, typer.Option(help="Parts to cut a batch into, to save memory.", rich_help_panel=_TRAINING)
    ] = 1,
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing", help="Recompute activations, to save memory.", rich_help_panel=_TRAINING
        ),
    ] = False,
    precision: Annotated[
        Precision,
        typer.Option(help="auto: bf16 where the GPU, or processor, is faster with it.", rich_help_panel=_TRAINING),
    ] = Precision.auto,
    select: Annotated[
        _Select,
        typer.Option(
            help="Keep the epoch best on dev by this (nll-ts: NLL after temperature).", rich_help_panel=_TRAINING
        ),
    ] = _Select.nll_ts,
    patience: Annotated[
        int, typer.Option(help="Stop after so many epochs without a better one; 0: never.", rich_help_panel=_TRAINING)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Decides everything random.", rich_help_panel=_TRAINING)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder; an unfinished run there goes on. Default: runs/RECIPE-HASH.", rich_help_panel=_RUN
        ),
    ] = None,
    dynamics: Annotated[
        str | None,
        typer.Option(
            help="Run or map that recorded training dynamics, for guided recipes; without it a plain run comes first.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Guided recipes: no run before, each epoch guides the next.", rich_help_panel=_TRAINING
        ),
    ] = False,
    record: Annotated[
        Record,
        typer.Option(
            help="Training dynamics of the training steps, or of a pass after each epoch (a third more time).",
            rich_help_panel=_TRAINING,
        ),
    ] = Record.training,
    guarantee: Annotated[
        float | None,
        typer.Option(
            parser=share,
            metavar="NUMBER",
            help="Accuracy to hold among accepted predictions; half of dev is kept for it.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.", rich_help_panel=_RUN)] = 15,
    checkpoint_minutes: Annotated[float, typer.Option(help="Save state this often.", rich_help_panel=_RUN)] = 10.0,
    checkpoint_epochs: Annotated[
        int, typer.Option(help="And after every so many epochs; 0: not.", rich_help_panel=_RUN)
    ] = 0,
    track: Annotated[
        list[str] | None, typer.Option(help="tensorboard, wandb, … Repeatable.", rich_help_panel=_RUN)
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Upload the model when done.", rich_help_panel=_RUN)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read everything, estimate time and memory, write nothing.", rich_help_panel=_RUN
        ),
    ] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.", rich_help_panel=_RUN)] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the figures as JSON on stdout, nothing else there.", rich_help_panel=_RUN),
    ] = False,
) -> None:
    """Fine-tune a classifier, calibrate it on dev data, and measure how far its confidence can be trusted.

    Example: `calmix train reviews.csv --test test.csv --ood tweets=tweets.csv --recipe input-mixup --out run`
    """
    options = dict(locals())

    from calmix.models import with_vectors
    from calmix.training import train as run_training

    options["model"] = with_vectors(model, options.pop("vectors"))

    learn(run_training, options.pop("train"), options)


def with_options_of(command: Command, *, but: Collection[str]) -> Callable[[Command], Command]:
    """Return a decorator that puts a command's options, without some, in the place of `**options`."""

    def decorate(other: Command) -> Command:
        own = inspect.signature(other).parameters.values()
        lent = [p for name, p in inspect.signature(command).parameters.items() if name not in but]
        parameters = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD] + lent
        other.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        other.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return other

    return decorate


def learn(run: Callable[..., "Run"], source: str, options: Mapping[str, Any]) -> None:
    """Call what trains with the options of the command line, and print what came of it."""
    settings: dict[str, Any] = {
        name: value.value if isinstance(value, StrEnum) else value for name, value in options.items()
    }
    as_json, push_to_hub, no_report = (settings.pop(name) for name in ("as_json", "push_to_hub", "no_report"))
    dry_run = settings["dry_run"]
    settings |= {
        "options": pairs(settings.pop("set_") or [], "--set"),
        "ood": named_files(settings["ood"] or []),
        "class_weights": weights(settings["class_weights"]),
        "track": tuple(settings["track"] or ()),
    }

    from calmix.training import check_name, processes, push

    if push_to_hub is not None:
        check_name(push_to_hub)

    with training_bar(quiet=as_json or dry_run) as bar:
        done = run(source, **settings, on_progress=bar, on_note=(lambda _: None) if as_json else note)
    if not processes().is_main_process:
        return
    page = None
    if not (dry_run or no_report):
        from calmix.report import write_run_page

        page = done.folder / "report.html"
        if not page.is_file():  # a run that was finished before has one, unless it was stopped just then
            page = write_run_page(done.folder)
    if as_json:
        print_json({"folder": str(done.folder), **done.metrics})
    elif dry_run:
        _print_estimate(done.metrics)
    else:
        figures_table(done.metrics["splits"])
        if "generations" in done.metrics:
            generations_table(done.metrics["generations"])
        for line in verdict_lines(done.folder):
            print(line)
        for line in guarantee_lines(done.metrics):
            print(line)
        if page is not None:
            print(f"page: {page}")
        print(f"model: {done.model}")
    if push_to_hub is not None and not dry_run:
        note(f"uploaded to {push(done.model, push_to_hub)}")


def _print_estimate(metrics: dict[str, Any]) -> None:
    rows = ", ".join(f"{name} {count:,}" for name, count in metrics["rows"].items())
    minutes, seconds = divmod(round(metrics["seconds"]), 60)
    print(f"rows: {rows}")
    if metrics["labels"]:
        print(f"labels: {plain(', '.join(metrics['labels']))}")
    print(f"steps: {metrics['steps']:,}")
    print(
        f"training would take about {minutes} min {seconds} s and {metrics['memory_bytes'] / 2**30:.1f} GiB of memory"
    )
