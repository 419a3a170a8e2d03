"""Distillation: a student that learns from a teacher's predictions, and from the labels."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from calmix.errors import InputError
from calmix.mixing import Form
from calmix.training.arguments import check_arguments
from calmix.training.halves import Run
from calmix.training.pipeline import train
from calmix.training.preparing import Source
from calmix.training.teachers import Teacher

__all__ = ["distil"]

# What `train` takes and has another name here, or only one value.
_ELSEWHERE = {
    "model": "the model that learns is --student",
    "recipe": "it is the recipe; for another one, train",
    "cache_teacher": "give --cache or --no-cache",
    "scaled_teacher": "give --scaled or --unscaled",
}


def distil(
    teacher: Teacher | Sequence[Teacher],
    data: Source,
    *,
    student: str | Path = "minilm",
    alpha: float = 0.5,
    tau: float = 1.0,
    form: Form = "usual",
    generations: int = 1,
    cache: bool = True,
    scaled: bool = True,
    out: str | Path | None = None,
    **training: Any,
) -> Run:
    """Train a student on α·CE(labels) + (1−α)·KL(teacher), calibrate it and measure it, as `train` does.

    The teacher reads the texts with its own tokenizer; labels are matched by name. Rows without a label learn from
    the teacher alone.

    Args:
        teacher: a run folder, or any Hugging Face classifier's folder or hub name; several are averaged.
        data: the training set: a file, a hub data set's name, or `Examples`.
        student: the pretrained model that learns: a folder, a hub name, or `minilm`.
        alpha: weight α of the labels; the teacher has 1 − α.
        tau: temperature τ of the softened predictions.
        form: `usual`: τ²·KL(teacher ‖ student), both softened; `paper`: KL(student ‖ teacher), the teacher softened.
        generations: each student but the last teaches the next one, which begins where the first began. Each is a
            run of its own, in `out/generation-1` and so on; the last is returned, with the figures of each as
            `generations` among its metrics.
        cache: compute the teacher's logits once and keep them in the run folder; False asks it in every step.
        scaled: False takes the teacher as it came out of training, without the temperature fitted afterwards.
        out: the run folder; an unfinished run of the same settings there is continued, and a finished one returned.
        training: all else that `train` takes, but for `model`, `recipe`, `teacher`, and what goes with other recipes.
    """
    if generations < 1:
        raise InputError(f"--generations must be 1 or more, not {generations}")
    if generations > 1 and out is None:
        raise InputError("several generations need a folder to be in: give --out")
    if given := next((name for name in _ELSEWHERE if name in training), None):
        raise InputError(f"{given} is not for distil: {_ELSEWHERE[given]}")
    check_arguments("distil", signature(train), [data], training)
    own = {"alpha": alpha, "tau": tau, "form": form}
    options = training.pop("options", None) or {}
    if twice := own.keys() & options.keys():
        raise InputError(f"{min(twice)} is not set among the recipe's options here: give --{min(twice)}")
    settings = {**training, "model": student, "recipe": "distil", "options": {**options, **own}}
    settings |= {"cache_teacher": cache, "scaled_teacher": scaled}
    if generations == 1:
        return train(data, teacher=teacher, out=out, **settings)
    if training.get("dry_run"):
        run = train(data, teacher=teacher, out=out, **settings)
        return Run(run.folder, run.metrics | {key: generations * run.metrics[key] for key in ("steps", "seconds")})
    assert out is not None
    tell = training.get("on_note")
    each = []
    for turn in range(1, generations + 1):
        folder = Path(out) / f"generation-{turn}"
        if tell is not None:
            settings["on_note"] = partial(_tell_of, turn, tell)
        run = train(data, teacher=teacher, out=folder, **settings)
        each.append({"folder": str(folder), "splits": run.metrics["splits"]})
        teacher = folder
    return Run(run.folder, run.metrics | {"generations": each})


def _tell_of(generation: int, tell: Callable[[str], None], line: str) -> None:
    tell(f"generation {generation}: {line}")
