"""What a model knows: how often it is right beside what takes no network, and whether it has learnt its task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calmix.report.reliability import wilson
from calmix.report.runs import Judged, RunFolder
from calmix.training.learning_notes import BEFORE, dev_loss_fell

__all__ = ["Course", "Knowledge", "State", "course_of", "prepare_knowledge"]

State = Literal["learnt", "unfinished", "hardly"]

# Of what a constant answer gets wrong, or of the entropy of the classes: less is hardly anything.
_GAIN, _SKILL, _NONE = 0.2, 0.1, 0.05
# Fewer rows cannot tell whether anything was learnt.
_FEW = 50
# A network that was trained to its end needs no such temperature.
_TIMID = 0.5
# A certain mistake costs as much as this one, so that a few of them do not decide.
_LEAST = 1e-7


@dataclass(frozen=True)
class Course:
    """How a run came to its model: its epochs, the one that was kept, and the temperature that one needed."""

    history: Sequence[Mapping[str, Any]] = ()
    best_epoch: int | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class Knowledge:
    """How often a model is right, and what that is worth."""

    right: float
    interval: tuple[float, float]
    """Wilson's 95 %."""
    constant: float
    """How often the commonest class would be right, whatever the input; of multiple choice, a guess."""
    choices: bool
    state: State
    sentence: str
    """What to say of it before a word on confidence."""
    before: float | None
    """Accuracy on dev of the head that was fitted before fine-tuning, where there is one."""
    now: float | None
    """Accuracy on dev of the epoch that was kept."""


def course_of(run: RunFolder) -> Course:
    """Return how the model of a run came about; of a map or an evaluation, nothing is known."""
    best, temperature = run.metrics.get("best_epoch"), run.metrics.get("temperature")
    return Course(
        run.history,
        best if isinstance(best, int) else None,
        float(temperature) if isinstance(temperature, int | float) else None,
    )


def prepare_knowledge(judged: Judged, course: Course | None = None) -> Knowledge:
    """Return what a model knows, from what it said about labelled rows and from how it was trained.

    It has *hardly* learnt anything where it gets right less than a fifth of what a constant answer gets wrong, and
    its NLL is less than a tenth below that of the classes' shares; and either the interval of its accuracy does not
    leave out the constant answer's, or its NLL is not even a twentieth below. Its training is *unfinished* where the
    dev loss still fell in the last epoch, which was kept, and its confidence needed a temperature below one half.
    """
    course = course or Course()
    probs, rows = judged.probs["after"], len(judged.labels)
    hits = int((probs.argmax(axis=1) == judged.labels).sum())
    right, interval = hits / rows, wilson(hits, rows)
    constant, entropy = _without_a_model(judged)
    fell = dev_loss_fell(course.history, course.best_epoch) if course.best_epoch != BEFORE else None
    state: State = "learnt"
    if entropy > 0 and rows >= _FEW and _hardly(judged, right, interval[0], constant, entropy):
        state = "hardly"
    elif fell is not None and course.temperature is not None and course.temperature < _TIMID:
        state = "unfinished"
    dev = {
        int(entry["epoch"]): (entry.get("dev") or {}).get("accuracy") for entry in course.history if "epoch" in entry
    }
    before, now = dev.get(BEFORE), dev.get(course.best_epoch) if course.best_epoch is not None else None
    parts = [_beside(right, interval, constant, state, choices=not judged.classes)]
    if state == "unfinished" and fell is not None and course.temperature is not None:
        parts.append(
            f"When training ended, the dev loss was still falling (by {_whole(fell)} % in the last epoch), and the "
            f"confidence needed a temperature of {course.temperature:.2g}: more --epochs, or a larger --lr, may help."
        )
    parts += _head(course, before, now)
    return Knowledge(right, interval, constant, not judged.classes, state, " ".join(parts), before, now)


def _without_a_model(judged: Judged) -> tuple[float, float]:
    """Return how often the best constant answer is right, and the NLL of the shares; of choices, of guessing."""
    if not judged.classes:
        # What a row does not have got no probability; the right one is always there.
        there = judged.probs["after"] > 0
        there[np.arange(len(there)), judged.labels] = True
        counts = there.sum(axis=1)
        return float((1 / counts).mean()), float(np.log(counts).mean())
    shares = np.bincount(judged.labels) / len(judged.labels)
    shares = shares[shares > 0]
    return float(shares.max()), float(-(shares * np.log(shares)).sum())


def _hardly(judged: Judged, right: float, low: float, constant: float, entropy: float) -> bool:
    gold = judged.probs["after"][np.arange(len(judged.labels)), judged.labels]
    skill = 1 + float(np.log(np.maximum(gold, _LEAST)).mean()) / entropy
    if right - constant >= _GAIN * (1 - constant) or skill >= _SKILL:
        return False
    return low <= constant or skill < _NONE


def _beside(right: float, interval: tuple[float, float], constant: float, state: State, *, choices: bool) -> str:
    other = "guessing" if choices else "always answering the commonest class"
    if state == "learnt":  # how often it is right is in the headline
        return f"{other.capitalize()} would be right {_whole(constant)} % of the time."
    return (
        f"It is right {_whole(right)} % of the time ({_whole(interval[0])}–{_whole(interval[1])} %); "
        f"{other} would be right {_whole(constant)} %."
    )


def _head(course: Course, before: float | None, now: float | None) -> list[str]:
    """Return what is to be said of the head that was fitted before fine-tuning."""
    if course.best_epoch == BEFORE:
        tried = any(entry["epoch"] > BEFORE for entry in course.history)
        why = "no epoch of fine-tuning was better" if tried else "nothing was fine-tuned"
        return [f"This is the network as it was loaded, with a head fitted to it: {why}."]
    if before is None or now is None:
        return []
    return [
        f"On the dev rows it is right {100 * now:.1f} % of the time; its head before fine-tuning was at "
        f"{100 * before:.1f} %."
    ]


def _whole(share: float) -> int:
    return round(100 * share)
