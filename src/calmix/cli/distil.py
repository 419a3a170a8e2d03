"""`calmix distil`: from a teacher and a table of texts to a calibrated student."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from calmix.cli.train import learn, train, with_options_of
from calmix.errors import InputError

__all__ = ["distil"]

_PANEL = "Distillation"


class _Form(StrEnum):
    usual = "usual"
    paper = "paper"


@with_options_of(train, but=("train", "model", "recipe", "dynamics", "online"))
def distil(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TEACHER... TRAIN",
            help="Run folders, or any classifiers (several are averaged); last the data to learn from, whose labels "
            "are optional: a CSV, TSV, JSONL or Parquet file, or a hub data set.",
        ),
    ],
    student: Annotated[
        str,
        typer.Option(
            help="Folder or hub name of the model that learns, `minilm`, or `sentence-cnn`.", rich_help_panel=_PANEL
        ),
    ] = "minilm",
    alpha: Annotated[
        float, typer.Option(help="Weight of the labels; the teacher has the rest.", rich_help_panel=_PANEL)
    ] = 0.5,
    tau: Annotated[
        float, typer.Option(help="Temperature that softens the predictions compared.", rich_help_panel=_PANEL)
    ] = 1.0,
    form: Annotated[
        _Form,
        typer.Option(
            help="usual: τ²·KL(teacher‖student), both softened; paper: KL(student‖teacher), teacher softened.",
            rich_help_panel=_PANEL,
        ),
    ] = _Form.usual,
    generations: Annotated[
        int, typer.Option(help="Each student teaches the next, so many times.", rich_help_panel=_PANEL)
    ] = 1,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Ask the teacher once, or in every step.", rich_help_panel=_PANEL)
    ] = True,
    scaled: Annotated[
        bool,
        typer.Option(
            "--scaled/--unscaled",
            help="Teach with the temperature fitted to the teacher, or without it.",
            rich_help_panel=_PANEL,
        ),
    ] = True,
    model: Annotated[str | None, typer.Option(hidden=True)] = None,
    recipe: Annotated[str | None, typer.Option(hidden=True)] = None,
    **options: Any,
) -> None:
    """Train a student on the labels and on what a teacher predicts, then calibrate and measure it.

    The teacher reads the texts with its own tokenizer; labels are matched by name; rows without a label learn from
    the teacher alone.

    Example: `calmix distil run train.csv --student distilbert-base-uncased --alpha 0.5 --tau 2 --out student`
    """

    # Unknown here, but what people who know `calmix train` write: both are refused with what is meant.
    options |= {name: value for name, value in (("model", model), ("recipe", recipe)) if value is not None}
    *teacher, source = words
    if not teacher:
        raise InputError(f"{source} is the teacher, or the data? Give both: calmix distil TEACHER TRAIN")

    from calmix.models import with_vectors

    learner = with_vectors(student, options.pop("vectors"))

    def run(data: str, **settings: Any) -> Any:
        from calmix.training import distil as run_distillation

        return run_distillation(
            teacher,
            data,
            student=learner,
            alpha=alpha,
            tau=tau,
            form=form.value,
            generations=generations,
            cache=cache,
            scaled=scaled,
            **settings,
        )

    learn(run, source, options)
