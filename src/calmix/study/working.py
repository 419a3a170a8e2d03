"""Working through a study: what is finished is left alone, what fails is noted, and others may work beside us."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calmix.data import write_json
from calmix.data.reusing import reusing
from calmix.report.titles import model_title
from calmix.study.executing import Failure, Job, execute, is_untrimmed, job_of, release, trim
from calmix.study.grid import Library, Plan, Spec
from calmix.training import Progress
from calmix.training.folder import Busy, is_finished, is_untidy, locked, tidy

__all__ = ["State", "Storage", "work"]

# Seconds between two looks at what other workers hold.
_WAIT = 1.0


@dataclass(frozen=True)
class Storage:
    """Where the runs of studies are: one folder each, named by its key, and what became of those that failed."""

    root: Path
    _done: set[str] = field(default_factory=set, repr=False)
    """Finished runs met before: they stay finished."""

    def folder(self, key: str) -> Path:
        """Return the run folder of a key."""
        return self.root / key

    def finished(self, key: str) -> bool:
        """Return whether the run is complete."""
        if key not in self._done and is_finished(self.folder(key)):
            self._done.add(key)
        return key in self._done

    def failure(self, key: str) -> dict[str, Any] | None:
        """Return why a run failed, if it did."""
        try:
            found: dict[str, Any] = json.loads(self._failure(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    @property
    def failed(self) -> set[str]:
        """The runs of which it is noted that they failed."""
        try:
            return {path.stem for path in (self.root / ".failed").iterdir() if path.suffix == ".json"}
        except OSError:
            return set()

    def fail(self, spec: Spec, failure: Failure) -> None:
        """Note why a run failed."""
        what = {"task": spec.task, "model": spec.model, "recipe": spec.recipe, "seed": spec.seed}
        when = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self._failure(spec.key), {**what, "error": failure.error, "details": failure.details, "when": when})

    def forgive(self, key: str) -> None:
        """Forget that a run failed."""
        self._failure(key).unlink(missing_ok=True)

    def discard(self, key: str) -> None:
        """Remove a run, so that it is made again."""
        shutil.rmtree(self.folder(key), ignore_errors=True)
        self._done.discard(key)

    @contextmanager
    def holding(self, key: str) -> Iterator[None]:
        """Hold a run against other workers: raises `Busy` where one has it."""
        place = self.root / ".working" / key
        with locked(place):
            yield
        for folder in (place, place.parent):  # those that a killed worker made
            with suppress(OSError):
                folder.rmdir()

    @property
    def held(self) -> set[str]:
        """The runs that a worker holds, or held when it was killed."""
        try:
            return {path.name for path in (self.root / ".working").iterdir()}
        except OSError:
            return set()

    def _failure(self, key: str) -> Path:
        return self.root / ".failed" / f"{key}.json"


@dataclass(frozen=True)
class State:
    """Where a study stands."""

    done: int
    failed: int
    total: int
    samples_done: int
    """Training samples seen by finished runs, and by those under way."""
    samples: int
    current: str = ""

    @property
    def open(self) -> int:
        """How many runs are still to be made."""
        return self.total - self.done - self.failed


def state_of(plan: Plan, storage: Storage) -> State:
    """Return where a study stands, as its folders tell."""
    done = {key for key in plan.runs if storage.finished(key)}
    failed = storage.failed & plan.runs.keys() - done
    seen = sum(plan.runs[key].samples for key in done)
    return State(len(done), len(failed), len(plan.runs), seen, sum(spec.samples for spec in plan.runs.values()))


def work(
    plan: Plan,
    storage: Storage,
    library: Library,
    *,
    until: float | None = None,
    only: set[str] | None = None,
    on_state: Callable[[State], None] | None = None,
) -> State:
    """Make every run of a plan that is neither finished nor failed, and return where the study then stands.

    No run is begun after `until` (a `time.monotonic()`), and none but those in `only`, if given, and what they build
    on. Other workers may have the same plan and storage: a run is held by one of them, and freed by the system should
    that one die.
    """
    if only is not None:
        only = only | {needed.key for key in only for needed in plan.runs[key].builds_on}
    _bring_back_teachers(plan, storage)
    _tidy_up(plan, storage)
    with reusing():
        while True:
            began = waiting = False
            for group in plan.groups:
                wanted = [spec for spec in group if only is None or spec.key in only]
                with ExitStack() as held:
                    jobs = []
                    for spec in wanted:
                        ready = _ready(spec, storage)
                        if ready is None or (until is not None and time.monotonic() >= until):
                            continue
                        if not ready:
                            waiting = True
                            continue
                        try:
                            held.enter_context(storage.holding(spec.key))
                        except Busy:
                            waiting = True
                            continue
                        if _ready(spec, storage):  # it may have been finished while we looked
                            folders = {k: storage.folder(k) for k in (spec.key, *(n.key for n in spec.needs.values()))}
                            lean = plan.study.keep == "metrics" and not _teaches(spec.key, plan, storage)
                            jobs.append(job_of(spec, folders, library, lean=lean))
                    if jobs:
                        began = True
                        _make(jobs, plan, storage, on_state, until)
            out_of_time = until is not None and time.monotonic() >= until
            if out_of_time or not (began or waiting):
                break
            if not began:
                time.sleep(_WAIT)
    state = state_of(plan, storage)
    if on_state is not None:
        on_state(state)
    return state


def _bring_back_teachers(plan: Plan, storage: Storage) -> None:
    """Have runs made again that are to teach, and of which another study kept no more than the figures."""
    for key, students in plan.students.items():
        if storage.finished(key) and not all(storage.finished(student) for student in students):
            _can_teach(key, storage)


def _can_teach(key: str, storage: Storage) -> bool:
    """Return whether a finished run has its model; where another study left no more than figures, it is removed."""
    if (storage.folder(key) / "model").is_dir():
        return True
    with suppress(Busy), storage.holding(key):
        storage.discard(key)
    return False


def _tidy_up(plan: Plan, storage: Storage) -> None:
    """Finish what a worker that was killed had left to do about runs that are complete."""
    held, lean = storage.held, plan.study.keep == "metrics"
    for key, spec in plan.runs.items():
        if not storage.finished(key):
            continue
        folder, teaches = storage.folder(key), _teaches(key, plan, storage)
        if key in held or is_untidy(folder) or (lean and is_untrimmed(spec, folder, teaches=teaches)):
            with suppress(Busy), storage.holding(key), locked(folder):
                tidy(folder)
                trim(spec, folder, plan.study.keep, teaches=teaches)


def _teaches(key: str, plan: Plan, storage: Storage) -> bool:
    """Return whether a run is still to teach another."""
    return not all(storage.finished(student) for student in plan.students.get(key, []))


def _ready(spec: Spec, storage: Storage) -> bool | None:
    """Return whether a run can begin; None where there is nothing to do, since it is done or cannot be."""
    if storage.finished(spec.key) or storage.failure(spec.key) is not None:
        return None
    for name, needed in spec.needs.items():
        reason = storage.failure(needed.key)
        if reason is not None and not storage.finished(needed.key):
            storage.fail(spec, Failure(f"the run that gives its {name} failed: {reason['error']}", ""))
            return None
        if not storage.finished(needed.key) or (name == "teacher" and not _can_teach(needed.key, storage)):
            return False
    return True


def _make(
    jobs: list[Job], plan: Plan, storage: Storage, on_state: Callable[[State], None] | None, until: float | None
) -> None:
    begun = state_of(plan, storage)
    spec = jobs[0].spec
    current = (
        f"{spec.task} · {model_title(spec.model)} · {spec.subset or spec.recipe if spec.what == 'train' else 'map'}"
    )

    def show(progress: Progress) -> None:
        assert on_state is not None
        share = progress.step / max(1, progress.steps)
        on_state(replace(begun, samples_done=begun.samples_done + int(share * spec.samples), current=current))

    for job, failure in execute(jobs, on_progress=None if on_state is None else show):
        if failure is not None:
            storage.fail(job.spec, failure)
        else:
            for done in (job.spec, *job.spec.needs.values()):
                teaches = _teaches(done.key, plan, storage)
                if done is job.spec or not teaches:
                    trim(done, storage.folder(done.key), plan.study.keep, teaches=teaches)
        begun = state_of(plan, storage)
        if on_state is not None:
            on_state(replace(begun, current=current))
        if until is not None and time.monotonic() >= until:
            break
    release()
