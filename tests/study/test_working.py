"""Working through a study: continued, shared with other workers, and not stopped by a run that fails."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from calmix.study import working
from calmix.study.executing import Failure
from calmix.study.working import Storage, state_of, work
from calmix.training.teachers import Teachers


def test_finished_runs_are_never_repeated(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()
    state = work(prepared.plan, prepared.storage, prepared.library)
    assert (state.done, state.failed, state.open) == (4, 0, 0)

    def nobody(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(working, "execute", nobody)
    again = ready()
    assert work(again.plan, again.storage, again.library).done == 4


def test_a_larger_study_makes_only_what_is_new(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    work(prepared.plan, prepared.storage, prepared.library)
    made: list[str] = []
    original = working.execute

    def watched(jobs: Any, **kwargs: Any) -> Any:
        made.extend(job.spec.recipe for job in jobs)
        return original(jobs, **kwargs)

    monkeypatch.setattr(working, "execute", watched)
    larger = ready()
    work(larger.plan, larger.storage, larger.library)
    assert made == ["tdmixup", "tdmixup"]


def test_a_study_stopped_in_the_middle_of_a_run_goes_on(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()
    monkeypatch.setattr("calmix.training.loop._POLL", 0.0)
    seen: list[int] = []

    def stop(state: Any) -> None:
        seen.append(state.done)
        if state.done == 1 and state.samples_done > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(prepared.plan, prepared.storage, prepared.library, on_state=stop)
    assert state_of(prepared.plan, prepared.storage).done == 1
    assert work(prepared.plan, prepared.storage, prepared.library).done == 4


def test_what_a_killed_worker_left_is_tidied_by_the_next(ready: Any) -> None:
    whole = ready('[[method]]\nrecipe = "erm"\n', head="seeds = 1")
    work(whole.plan, whole.storage, whole.library)
    prepared = ready('[[method]]\nrecipe = "erm"\n', head='seeds = 1\nkeep = "metrics"')
    (key,) = prepared.plan.runs
    folder, held = prepared.storage.folder(key), prepared.storage.root / ".working" / key
    held.mkdir(parents=True)
    (held / ".lock").write_text("")
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    (folder / ".lock").write_text("")
    assert (folder / "model").is_dir()
    work(prepared.plan, prepared.storage, prepared.library)
    left = {path.name for path in folder.iterdir()}
    assert not left & {"model", "checkpoints", "label_issues.csv", ".lock"}
    assert {path.name for path in prepared.storage.root.iterdir()} == {key}


def test_a_full_disk_is_no_runs_fault_and_stops_the_study(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()

    def full(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError(28, "No space left on device", "weights")

    with monkeypatch.context() as patch:
        patch.setattr("calmix.study.executing.train", full)
        with pytest.raises(OSError, match="No space left"):
            work(prepared.plan, prepared.storage, prepared.library)
    assert state_of(prepared.plan, prepared.storage).open == 4
    assert work(prepared.plan, prepared.storage, prepared.library).done == 4


def test_a_failure_is_noted_and_those_who_need_the_run_fail_with_it(ready: Any) -> None:
    prepared = ready()
    first = next(iter(prepared.plan.runs.values()))
    folder = prepared.storage.folder(first.key)
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("not a run")
    state = work(prepared.plan, prepared.storage, prepared.library)
    assert (state.done, state.failed) == (2, 2)
    guided = next(
        spec for spec in prepared.plan.runs.values() if spec.needs and spec.needs["dynamics"].key == first.key
    )
    assert "not empty" in prepared.storage.failure(first.key)["error"]
    assert "the run that gives its dynamics failed" in prepared.storage.failure(guided.key)["error"]
    # It is not tried again unless one asks for it.
    (folder / "mine.txt").unlink()
    assert work(prepared.plan, prepared.storage, prepared.library).failed == 2
    for key in prepared.plan.runs:
        prepared.storage.forgive(key)
    assert work(prepared.plan, prepared.storage, prepared.library).done == 4


def test_no_run_is_begun_after_the_time_is_up(ready: Any) -> None:
    prepared = ready()
    state = work(prepared.plan, prepared.storage, prepared.library, until=time.monotonic())
    assert (state.done, state.open) == (0, 4)
    assert not prepared.storage.root.exists()


def test_a_run_that_another_worker_holds_is_waited_for_and_taken_once_it_is_free(
    ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready()
    first = next(iter(prepared.plan.runs))
    other = prepared.storage.holding(first)
    other.__enter__()
    waited: list[int] = []

    def wait(_seconds: float) -> None:
        waited.append(state_of(prepared.plan, prepared.storage).done)
        other.__exit__(None, None, None)

    monkeypatch.setattr(working.time, "sleep", wait)
    assert work(prepared.plan, prepared.storage, prepared.library).done == 4
    # Everything else was made first: one plain run, and the one it guides.
    assert waited == [2]


def test_where_a_study_stands_is_told_in_samples(ready: Any) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    states: list[Any] = []
    work(prepared.plan, prepared.storage, prepared.library, on_state=states.append)
    assert [state.samples_done for state in states][-1] == states[-1].samples == 120
    assert any("tiny" in state.current for state in states)


def test_a_note_of_failure_that_is_damaged_is_no_failure(tmp_path: Path, ready: Any) -> None:
    spec = next(iter(ready().plan.runs.values()))
    storage = Storage(tmp_path / "runs")
    storage.fail(spec, Failure("why", ""))
    assert storage.failure(spec.key)["error"] == "why"
    (tmp_path / "runs" / ".failed" / f"{spec.key}.json").write_text("{")
    assert storage.failure(spec.key) is None


TAUGHT = """
[[method]]
recipe = "informed-mixup"
[[method]]
name = "student"
recipe = "distil"
teacher = "informed-mixup"
scaled_teacher = false
"""


def test_a_student_learns_from_the_run_of_its_seed_whose_model_is_kept_that_long(
    ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready(TAUGHT, head='seeds = 1\nkeep = "metrics"')
    plain, teacher, student = prepared.plan.runs.values()
    assert [spec.key for spec in student.builds_on] == [plain.key, teacher.key]
    there: list[bool] = []
    original = working.execute

    def watched(jobs: Any, **kwargs: Any) -> Any:
        there.append((prepared.storage.folder(teacher.key) / "model").is_dir())
        return original(jobs, **kwargs)

    monkeypatch.setattr(working, "execute", watched)
    assert work(prepared.plan, prepared.storage, prepared.library).done == 3
    assert there == [False, False, True]
    assert not any((prepared.storage.folder(key) / "model").exists() for key in prepared.plan.runs)
    assert not list(prepared.storage.folder(student.key).glob("teacher-*"))


def test_a_teacher_of_which_only_figures_were_kept_is_made_again(ready: Any) -> None:
    before = ready('[[method]]\nrecipe = "erm"\n', head='seeds = 1\nkeep = "metrics"')
    work(before.plan, before.storage, before.library)
    methods = '[[method]]\nrecipe = "erm"\n[[method]]\nname = "student"\nrecipe = "distil"\nteacher = "erm"\n'
    prepared = ready(methods, head='seeds = 1\nkeep = "metrics"')
    assert state_of(prepared.plan, prepared.storage).done == 1
    state = work(prepared.plan, prepared.storage, prepared.library)
    assert (state.done, state.failed) == (2, 0)


def test_a_teacher_that_another_study_trims_while_we_work_is_made_again(
    ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready(TAUGHT, head='seeds = 1\nkeep = "metrics"')
    _, teacher, student = prepared.plan.runs.values()
    work(prepared.plan, prepared.storage, prepared.library, only={teacher.key})
    monkeypatch.setattr(working, "_bring_back_teachers", lambda *_: None)  # we have begun already
    shutil.rmtree(prepared.storage.folder(teacher.key) / "model")
    state = work(prepared.plan, prepared.storage, prepared.library, only={student.key})
    assert (state.done, state.failed) == (3, 0)


def test_what_is_asked_for_is_made_with_what_it_builds_on(ready: Any) -> None:
    prepared = ready(TAUGHT, head="seeds = 1")
    assert work(prepared.plan, prepared.storage, prepared.library, only={list(prepared.plan.runs)[-1]}).done == 3


def test_students_of_one_teacher_ask_it_once(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    students = '[[method]]\nrecipe = "distil"\nteacher = "erm"\nvary = { alpha = [0.1, 0.5, 0.9] }\n'
    prepared = ready('[[method]]\nrecipe = "erm"\n' + students)
    asked: list[tuple[str, ...]] = []
    logits = Teachers.logits

    def counted(self: Teachers, *rest: Any) -> Any:
        asked.append(self.identities)
        return logits(self, *rest)

    monkeypatch.setattr(Teachers, "logits", counted)
    assert work(prepared.plan, prepared.storage, prepared.library).done == 8
    assert len(asked) == len(set(asked)) == 2  # the teacher of each seed
