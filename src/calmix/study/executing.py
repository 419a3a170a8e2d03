"""Training the runs of a study: those that differ only in their seed are handed over together."""

import errno
import gc
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyarrow import parquet

from calmix.data import Examples, read_table, write_table
from calmix.data.gathering import TaskSets
from calmix.errors import InputError, TrainingError
from calmix.study.asking import OF_A_KEPT_MODEL
from calmix.study.grid import Library, Spec
from calmix.training import FinishedRun, Progress, survey, train
from calmix.training.folder import is_finished
from calmix.training.mapping import TEXTS, known_dynamics, region_rows
from calmix.training.predictions import lightened
from calmix.training.together import train_together

__all__ = ["Failure", "Job", "execute", "is_untrimmed", "job_of", "release", "trim"]

_MAP = "datamap.parquet"
_NO_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Job:
    """A run that is to be made now: what it is, where it goes, what it reads."""

    spec: Spec
    folder: Path
    sets: TaskSets
    dynamics: Path | None
    """The folder of the run that guides it, or whose regions it trains on."""
    teacher: Path | None = None
    """The folder of the run that it learns from."""
    model: str = ""
    """What its model is loaded by."""
    recipe: str = ""
    """What its recipe is found by."""
    lean: bool = False
    """Whether only figures are wanted."""


@dataclass(frozen=True)
class Failure:
    """Why a run could not be made."""

    error: str
    details: str


def job_of(spec: Spec, folders: Mapping[str, Path], library: Library, *, lean: bool = False) -> Job:
    """Return the job of a run whose needs are met; `folders` has every run's folder by key."""
    given = {name: folders[needed.key] for name, needed in spec.needs.items()}
    sets = library.sets(spec.task, spec.seed)
    model, recipe = library.model(spec.model), library.recipe(spec.recipe)
    return Job(spec, folders[spec.key], sets, given.get("dynamics"), given.get("teacher"), model, recipe, lean)


def execute(jobs: Sequence[Job], *, on_progress: OnProgress | None = None) -> Iterator[tuple[Job, Failure | None]]:
    """Yield each job as it is done, with what went wrong, if anything did.

    The jobs differ in nothing but seed, folder and what follows from the seed: whoever can train several seeds
    at once does it here.
    """
    if len(jobs) > 1 and all(job.spec.what == "train" for job in jobs) and torch.cuda.is_available():
        yield from _together(jobs, on_progress)
        return
    for job in jobs:
        try:
            _run(job, on_progress)
        except Exception as error:  # a study goes on, whatever one of its runs dies of
            _refuse_to_go_on(error)
            yield job, _failure(error)
        else:
            yield job, None


def _together(jobs: Sequence[Job], on_progress: OnProgress | None) -> Iterator[tuple[Job, Failure | None]]:
    asked: dict[int, dict[str, Any]] = {}
    for place, job in enumerate(jobs):
        try:
            asked[place] = _asked(job, on_progress)
        except Exception as error:  # its region is empty, or its map damaged
            yield job, _failure(error)
    try:
        made: Sequence[object] = train_together(list(asked.values()))
    except torch.OutOfMemoryError:
        # Together they need more memory than there is: one by one, then, and in parts if it must be.
        torch.cuda.empty_cache()
        made = [_outcome(partial(train, **each)) for each in asked.values()]
    except Exception as error:
        made = [error] * len(asked)
    for place, outcome in zip(asked, made, strict=True):
        _refuse_to_go_on(outcome)
        yield jobs[place], _failure(outcome) if isinstance(outcome, Exception) else None


def release() -> None:
    """Give GPU memory back that runs no longer need: torch would keep it, and others may share the GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()  # captured graphs hold on to theirs
        torch.cuda.empty_cache()


def _outcome(make: Callable[[], object]) -> object:
    try:
        return make()
    except Exception as error:
        return error


def _refuse_to_go_on(outcome: object) -> None:
    """Raise what no run can be blamed for and all others would die of, too: a disk that takes nothing more."""
    if isinstance(outcome, OSError) and outcome.errno in _NO_DISK:
        raise outcome


def _failure(error: Exception) -> Failure | None:
    if isinstance(error, FinishedRun):
        return None  # another worker was faster
    if isinstance(error, InputError | TrainingError):
        return Failure(str(error), "")
    details = "".join(traceback.format_exception(error))
    return Failure(f"{type(error).__name__}: {error}", details)


def _run(job: Job, on_progress: OnProgress | None) -> None:
    spec = job.spec
    if spec.what == "map":
        survey(
            job.sets.train,
            out=job.folder,
            model=job.model or spec.model,
            seed=spec.seed,
            filtered=True,
            judged=spec.judged,
            percentile=spec.percentile,
            fraction=spec.fraction,
            filter_wording=spec.filter_wording,
            filter_on=spec.filter_on,
            merge_labels=False,  # the task has settled that
            on_progress=None if on_progress is None else lambda _stage, progress: on_progress(progress),
            **{name: value for name, value in spec.training.items() if name not in OF_A_KEPT_MODEL},
        )
        return
    train(**_asked(job, on_progress))


def _asked(job: Job, on_progress: OnProgress | None) -> dict[str, Any]:
    """Return what `train` is to be asked for."""
    spec = job.spec
    return {
        "train": _subset(job) if spec.subset else job.sets.train,
        "dev": job.sets.dev,
        "test": job.sets.test,
        "ood": job.sets.ood,
        "model": job.model or spec.model,
        "recipe": job.recipe or spec.recipe,
        "options": spec.options,
        "out": job.folder,
        "seed": spec.seed,
        "dynamics": None if spec.subset or job.dynamics is None else job.dynamics,
        "online": spec.online,
        "teacher": job.teacher,
        "scaled_teacher": spec.scaled_teacher,
        "lean": job.lean,
        "merge_labels": False,  # the task has settled that
        "on_progress": on_progress,
        "on_note": lambda _: None,  # they are in the figures; a run that another worker has finished is none
        **spec.training,
    }


def _subset(job: Job) -> Examples:
    """Return the region of the training set that a run is to learn from."""
    spec, train = job.spec, job.sets.train
    assert job.dynamics is not None
    rows = region_rows(known_dynamics(job.dynamics, train), spec.subset, fraction=spec.fraction, filtered=spec.filtered)
    if len(rows) == 0:
        raise InputError(f"{job.dynamics}: no training sample is in the region {spec.subset!r}")
    return train.take(rows)


def trim(spec: Spec, folder: Path, keep: str, *, teaches: bool = False) -> None:
    """Leave of a finished run what tables need (`keep` = metrics), and a data map that others may be guided by.

    The model is left while the run still `teaches` others.
    """
    if keep != "metrics" or not is_finished(folder):
        return
    if not is_untrimmed(spec, folder, teaches=teaches):
        return
    if _guides(spec) and (folder / _MAP).is_file():
        table = parquet.read_table(folder / _MAP)  # with what it says about itself
        texts = [name for name in TEXTS if name in table.column_names]
        if texts:
            write_table(table.drop_columns(texts), folder / _MAP)
    for path in folder.glob("predictions-*.parquet"):
        table = read_table(path)
        if "confidence" in table.column_names:
            write_table(lightened(table), path)
    # Last, so that what is there of it tells whether all the rest was done.
    for path in _unneeded(spec, folder, teaches=teaches):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_untrimmed(spec: Spec, folder: Path, *, teaches: bool = False) -> bool:
    """Return whether a finished run holds anything that `trim` would remove."""
    return any(path.exists() for path in _unneeded(spec, folder, teaches=teaches))


def _guides(spec: Spec) -> bool:
    """Return whether other runs may be guided by the map of this one."""
    return spec.what == "map" or spec.is_plain


def _unneeded(spec: Spec, folder: Path, *, teaches: bool) -> list[Path]:
    names = ["checkpoints", "dynamics", "label_issues.csv", *([] if _guides(spec) else [_MAP])]
    names += [] if teaches else ["model"]
    return [*folder.glob("teacher-*.parquet"), *folder.glob("threshold-*"), *(folder / name for name in names)]
