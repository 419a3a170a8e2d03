"""The teachers of a distillation: any classifiers, read by their own tokenizers, their labels matched by name."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor

from calmix.data import Examples, read_table, write_table
from calmix.data.reusing import reused
from calmix.errors import InputError
from calmix.mixing import TEACHER, Recipe, Signal, Step
from calmix.models import (
    Classifier,
    Packed,
    Pixels,
    Predictor,
    checkpoint_of,
    columns_for,
    identity,
    load,
    log_probabilities,
    mean_logits,
)
from calmix.training.launching import from_main

__all__ = [
    "Teacher",
    "Teachers",
    "lesson_of",
    "load_teachers",
    "order_of",
    "rehearsed_lesson",
]

Teacher = str | Path
# Texts that a dry run lets a teacher read, to tell how long all would take.
_SAMPLE = 64


@dataclass(frozen=True, eq=False)
class Teachers:
    """One classifier or several, whose probabilities are averaged."""

    names: tuple[str, ...]
    classifiers: tuple[Predictor, ...]
    identities: tuple[str, ...]
    """What tells each from any other model: its content."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of the first teacher's logits; none for multiple choice."""
        return self.classifiers[0].label_names

    def check(self, examples: Examples) -> None:
        """Refuse examples that a teacher cannot read, or whose classes are not its own."""
        for classifier in self.classifiers:
            classifier.check(examples)
        self._ordered(examples)

    def file(self, folder: Path, examples: Examples) -> Path:
        """Return where the logits for these examples are kept in a run folder: the name says whose and for what."""
        key = hashlib.sha256("\n".join([*self.identities, examples.digest()]).encode()).hexdigest()[:16]
        return folder / f"teacher-{key}.parquet"

    def known(self, folder: Path, examples: Examples, accelerator: Accelerator) -> Tensor:
        """Return the logits [samples, classes] for these examples: read from the run folder, or made and kept there."""
        file = self.file(folder, examples)
        if not from_main(file.is_file):
            # The students that a study makes of one teacher share what it said.
            logits = reused("lesson", file.name, partial(self.logits, examples, accelerator))
            from_main(partial(_write, file, examples, logits))
            return torch.from_numpy(logits)
        return torch.from_numpy(from_main(partial(_read, file, examples)))

    def logits(self, examples: Examples, accelerator: Accelerator) -> NDArray[np.float32]:
        """Return the logits for these examples, each process computing a share; choices that are not there are −inf."""
        found = []
        for classifier, order in self._ordered(examples):
            classifier.to(accelerator.device)
            scores = _asked(classifier, examples, accelerator)
            classifier.to("cpu")  # the device's memory is the student's
            found.append(torch.from_numpy(scores if order is None else scores[:, order]))
        logits = mean_logits(found).numpy()
        if not np.isfinite(logits[_mask(examples, logits.shape[1])]).all():
            raise InputError(f"{' and '.join(self.names)}: predicts numbers that are not finite: no teacher")
        return logits

    def live(self, examples: Examples, student: Packed | Pixels, accelerator: Accelerator) -> Callable[[Step], Tensor]:
        """Return what computes the logits of a step's rows, in the step."""
        readers = []
        for classifier, order in self._ordered(examples):
            beside = classifier.beside
            more = (beside.recalibrator, beside.dropout)
            if not isinstance(classifier, Classifier) or any(part is not None for part in more):
                raise InputError(
                    "a teacher that is an ensemble, or has a recalibrator or MC-dropout beside its weights, cannot be "
                    "asked in each step: let it cache"
                )
            columns = None if order is None else torch.from_numpy(order).to(accelerator.device)
            packed = classifier.encode(examples).to(accelerator.device)
            readers.append((classifier.model.to(accelerator.device), packed, columns))
        widths: dict[tuple[int, int], int] = {}

        def width_of(packed: Packed | Pixels, turn: int, width: int) -> int:
            # Known on the host without looking at the rows: no text this wide for the student is wider for us.
            if (turn, width) not in widths:
                widths[turn, width] = packed.width(np.flatnonzero(student.host_lengths <= width))
            return widths[turn, width]

        @torch.no_grad()
        def ask(step: Step) -> Tensor:
            assert step.rows is not None
            # Images are shown to it as they are, whatever the student is shown of them.
            shape = step.inputs["input_ids"].shape if "input_ids" in step.inputs else (len(step), 1)
            choices = shape[1] if len(shape) == 3 else None
            found = []
            for turn, (model, packed, columns) in enumerate(readers):
                inputs = packed.batch(step.rows, width=width_of(packed, turn, shape[-1]), choices=choices)
                scores = model(**inputs).logits.float()
                found.append(scores if columns is None else scores[:, columns])
            return mean_logits(found)

        return ask

    def _ordered(self, examples: Examples) -> list[tuple[Predictor, NDArray[np.int64] | None]]:
        """Return each classifier with the columns of its logits in the order of the examples' classes."""
        if examples.kind == "choices":
            return [(classifier, None) for classifier in self.classifiers]
        return [
            (classifier, order_of(examples.label_names, classifier.label_names, name))
            for name, classifier in zip(self.names, self.classifiers, strict=True)
        ]


def load_teachers(
    teacher: Teacher | Sequence[Teacher] | None, recipe: Recipe, *, scaled: bool = True
) -> Teachers | None:
    """Return the teachers of a run, once it is clear that its recipe learns from some.

    Without `scaled` they are as they came out of training: the temperature in their weights is taken out, and what
    is kept beside them is left aside.
    """
    names = () if teacher is None else (teacher,) if isinstance(teacher, str | Path) else tuple(teacher)
    if bool(names) != recipe.taught:
        wrong = "learns from a teacher: give one, as in `calmix distil TEACHER TRAIN`"
        raise InputError(f"this recipe {wrong if recipe.taught else 'learns from no teacher, but one was given'}")
    if not names:
        return None
    classifiers = tuple(load(name).to("cpu") for name in names)  # until they are asked
    if len({classifier.multiple_choice for classifier in classifiers}) > 1:
        raise InputError("some teachers choose among choices, others among classes: they cannot teach together")
    found = tuple(identity(checkpoint_of(name)) + ("" if scaled else " unscaled") for name in names)
    if not scaled:
        classifiers = tuple(classifier.unscaled() for classifier in classifiers)
    return Teachers(tuple(map(str, names)), classifiers, found)


def lesson_of(
    teachers: Teachers | None,
    folder: Path,
    examples: Examples,
    student: Packed | Pixels,
    accelerator: Accelerator,
    *,
    cache: bool,
) -> dict[str, Signal]:
    """Return the signal a taught recipe reads: all logits, kept in the run folder, or what asks for them in a step."""
    if teachers is None:
        return {}
    if cache:
        return {TEACHER: teachers.known(folder, examples, accelerator).to(accelerator.device)}
    return {TEACHER: teachers.live(examples, student, accelerator)}


def rehearsed_lesson(
    teachers: Teachers | None, examples: Examples, student: Packed | Pixels, accelerator: Accelerator, *, cache: bool
) -> tuple[dict[str, Signal], float]:
    """Return what stands for the lesson in a dry run, and about how many seconds the teachers need before it."""
    if teachers is None:
        return {}, 0.0
    if not cache:
        return {TEACHER: teachers.live(examples, student, accelerator)}, 0.0
    rows = np.unique(np.linspace(0, len(examples) - 1, _SAMPLE).astype(np.int64))
    began = time.perf_counter()
    some = teachers.logits(examples.take(rows), accelerator)
    seconds = (time.perf_counter() - began) * len(examples) / len(rows)
    counts = examples.choice_counts
    width = some.shape[1] if counts is None else int(counts.max())
    return {TEACHER: torch.zeros(len(examples), width, device=accelerator.device)}, seconds


def order_of(labels: Sequence[str], theirs: Sequence[str], teacher: str) -> NDArray[np.int64]:
    """Return where each label stands among a teacher's; they must be the same ones."""
    found = columns_for(labels, theirs)
    if found is None:
        raise InputError(
            f"labels differ: {', '.join(labels)} in the training set, {', '.join(theirs)} in the teacher {teacher}; "
            "rename those of the data, or id2label in the teacher's config.json"
        )
    return found


def _asked(classifier: Predictor, examples: Examples, accelerator: Accelerator) -> NDArray[np.float32]:
    """Return a teacher's scores for all examples on every process, each having asked it about its share."""

    def scores(part: Examples) -> NDArray[np.float32]:
        return log_probabilities(classifier.logits(part), classifier.beside.recalibrator)

    world = accelerator.num_processes
    if world == 1:
        return scores(examples)
    rows = np.arange(len(examples))[accelerator.process_index :: world]
    shares = gather_object([(rows, scores(examples.take(rows)))] if len(rows) else [])
    out = np.full((len(examples), max(found.shape[1] for _, found in shares)), -np.inf, dtype=np.float32)
    for share, found in shares:
        out[share, : found.shape[1]] = found
    return out


def _mask(examples: Examples, width: int) -> NDArray[np.bool_]:
    """Return which logits exist: all, or those of each row's choices."""
    counts = examples.choice_counts
    present: NDArray[Any] = np.arange(width) < (np.full(len(examples), width) if counts is None else counts)[:, None]
    return present


def _write(file: Path, examples: Examples, logits: NDArray[np.float32]) -> None:
    there = _mask(examples, logits.shape[1])
    offsets = np.concatenate([[0], there.sum(1).cumsum()]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(logits[there]))
    write_table(pa.table({"id": pa.array(examples.ids, pa.string()), "logits": lists}), file)


def _read(file: Path, examples: Examples) -> NDArray[np.float32]:
    cells = read_table(file)["logits"].combine_chunks()
    counts = np.diff(np.asarray(cells.offsets))
    logits = np.full((len(counts), int(counts.max())), -np.inf, dtype=np.float32)
    logits[_mask(examples, logits.shape[1])] = np.asarray(cells.flatten())
    return logits
