"""Words of the command line that more than one command takes."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.models import Predictor

__all__ = [
    "Augment",
    "DropoutRate",
    "FilterOn",
    "FilterWording",
    "Judged",
    "Members",
    "Optimizer",
    "Passes",
    "Precision",
    "Record",
    "Schedule",
    "check_apart",
    "check_once",
    "check_order",
    "named_files",
    "pairs",
    "predictor",
    "share",
    "unfamiliar",
    "weights",
]

Members = Annotated[
    list[str] | None,
    typer.Option("--ensemble", metavar="RUN", help="Average the probabilities with another model's. Repeatable."),
]
Passes = Annotated[
    int | None, typer.Option("--mc-dropout", metavar="N", help="Predict N times with dropout on, and average.", min=1)
]
DropoutRate = Annotated[
    float | None, typer.Option("--dropout", help="Rate of --mc-dropout; default: as the model was trained.")
]


def predictor(
    model: str,
    members: list[str] | None,
    passes: int | None,
    rate: float | None,
    precision: Literal["fp32", "bf16"] = "fp32",
) -> "Predictor":
    """Return the model that these options ask for: one, or an ensemble, with or without MC-dropout."""
    from calmix.models import Dropout, load

    if rate is not None and passes is None:
        raise InputError("--dropout is the rate of --mc-dropout N: give both")
    dropout = None if passes is None else Dropout(passes, rate)
    return load([model, *(members or [])], precision=precision, mc_dropout=dropout)


def check_apart(option: str, file: Path, *read: str | Path) -> None:
    """Refuse a file to write to that is one of those that are read, whatever each is called."""
    if file.exists() and any(Path(each).exists() and file.samefile(each) for each in read):
        raise InputError(f"{option} {file}: is one of the tables that are read; give another file")


def check_order(command: str, model: str, *files: str) -> None:
    """Refuse a file and a model that are given in each other's place."""
    first = Path(files[0])
    holds_model = any((first / name).is_file() for name in ("run.toml", "config.json", "ensemble.json"))
    if Path(model).is_file() and holds_model:
        raise InputError(f"{model}: is a file, and {first} a model; the model comes first: {command} {first} {model}")


def share(text: str) -> float:
    """Return a number that may be written in per cent."""
    number, percent, rest = text.strip().partition("%")
    try:
        if rest:
            raise ValueError
        return float(number) / 100 if percent else float(number)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number, such as 0.95 or 95%") from None


def check_once(*files: str) -> None:
    """Refuse a file that is given twice, whatever it is called: it would count once, or as two."""
    known: list[Path] = []
    for file in map(Path, files):
        if any(file == other or (file.exists() and other.exists() and file.samefile(other)) for other in known):
            raise InputError(f"{file}: is given twice")
        known.append(file)


class Judged(StrEnum):
    """The region of a data map that the AUM filter judges."""

    easy = "easy"
    ambiguous = "ambiguous"
    both = "both"


class FilterWording(StrEnum):
    """Which samples of a region become threshold samples of the AUM filter."""

    balanced = "balanced"
    literal = "literal"


class FilterOn(StrEnum):
    """What the AUM filter's runs with threshold samples train on."""

    region = "region"
    all = "all"


class Augment(StrEnum):
    """What is done to images in training."""

    crop_flip = "crop-flip"
    crop = "crop"
    none = "none"


class Schedule(StrEnum):
    """What the learning rate does after it has risen."""

    linear = "linear"
    constant = "constant"
    steps = "steps"


class Optimizer(StrEnum):
    """What updates the weights."""

    adamw = "adamw"
    sgd = "sgd"


class Precision(StrEnum):
    """The arithmetic of training."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class Head(StrEnum):
    """Where a head begins."""

    fitted = "fitted"
    random = "random"


class Pooling(StrEnum):
    """What a new head reads of a text."""

    mean = "mean"
    first = "first"


class Record(StrEnum):
    """Which logits training dynamics are made of."""

    training = "training"
    evaluation = "evaluation"


def pairs(words: Sequence[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Return KEY=VALUE words as a dictionary; `form` is what the option calls them."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.strip()):
            raise InputError(f"{option} takes {form}, not {word!r}")
        if key.strip() in found:
            raise InputError(f"{option} gives {key.strip()!r} twice")
        found[key.strip()] = value.strip()
    return found


def named_files(words: Sequence[str]) -> dict[str, str]:
    """Return NAME=FILE words as a dictionary; a name becomes part of file names, so it must be a plain one."""
    return _plainly_named(pairs(words, "--ood", "NAME=FILE"))


def unfamiliar(words: Sequence[str]) -> dict[str, str | None]:
    """Return NAME=FILE words, and those that name data that is made: NAME alone."""
    from calmix.training.unfamiliar import BUILTIN

    form = f"NAME=FILE, or {' or '.join(BUILTIN)}"
    asked = pairs([word if "=" in word else f"{word}=" for word in words], "--ood", form)
    for name, file in asked.items():
        if not file and name not in BUILTIN:
            raise InputError(f"--ood takes {form}, not {name!r}")
    return {name: file or None for name, file in _plainly_named(asked).items()}


def _plainly_named(found: dict[str, str]) -> dict[str, str]:
    for name in found:
        if not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise InputError(f"--ood: {name!r} must be letters, digits, '-', '_' or '.' (it names a file of figures)")
    return found


def weights(words: str | None) -> str | dict[str, float] | None:
    """Return `balanced` or a weight per label."""
    if words is None or "=" not in words:
        return words
    try:
        return {name: float(value) for name, value in pairs(words.split(","), "--class-weights").items()}
    except ValueError:
        raise InputError(f"--class-weights takes NAME=NUMBER,NAME=NUMBER, not {words!r}") from None
