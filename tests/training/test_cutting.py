"""A batch that memory does not hold is taken in more parts, which is said once and remembered."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from runs import Killed, dying_at

from calmix.errors import TrainingError
from calmix.training import survey
from calmix.training.cutting import Cuts, OutOfMemory, cut_notes, read_cuts, retried
from calmix.training.stepping import Stepper


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device that holds so many rows at a time, all that is told about it: `memory[0]`."""
    room, gradient = [10**9], Stepper._gradient

    def limited(self: Stepper, rows: Any, *args: Any, **kwargs: Any) -> None:
        if len(rows) > room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        gradient(self, rows, *args, **kwargs)

    monkeypatch.setattr(Stepper, "_gradient", limited)
    return room


def decided(folder: Path) -> Any:
    return tomllib.loads((folder / "run.toml").read_text())["decided"].get("parts")


def test_a_batch_that_does_not_fit_is_taken_in_parts_that_do(
    quick: Any, calm: Path, memory: list[int], outcome: Any
) -> None:
    memory[0] = 3
    said: list[str] = []
    run = quick(model=calm, on_note=said.append)
    assert decided(run.folder) == [[0, 2], [0, 4]]
    assert run.metrics["epochs"][-1]["step"] == 6
    twice, note = [line for line in said if line.startswith("memory:")]
    assert twice == "memory: did not hold a whole batch, which is taken in 2 parts from step 1 on"
    assert note == twice.replace("2 parts", "4 parts")
    assert note in run.metrics["notes"]
    assert twice not in run.metrics["notes"]
    assert len(said) == len(set(said))
    # Nothing else is different from a run that was asked for parts.
    memory[0] = 10**9
    asked, found = outcome(quick("asked", model=calm, accumulate=4).folder), outcome(run.folder)
    assert found["model/model.safetensors"] == asked["model/model.safetensors"]
    assert found["datamap.parquet"] == asked["datamap.parquet"]
    assert found["log.jsonl"] == asked["log.jsonl"]


@pytest.mark.usefixtures("often")
def test_a_run_short_of_memory_goes_on_from_its_checkpoint_and_resumes_as_it_was(
    quick: Any, memory: list[int], outcome: Any
) -> None:
    def shrink(progress: Any) -> None:
        memory[0] = 4 if progress.step >= 4 else memory[0]

    changes = {"recipe": "input-mixup", "checkpoint_minutes": 0}
    whole = quick("whole", on_progress=shrink, **changes)
    assert decided(whole.folder) == [[4, 2]]
    assert any("among fewer than before: that is another method" in note for note in whole.metrics["notes"])
    # Killed later, or before it was short of memory, it repeats what was decided, step by step.
    memory[0] = 10**9

    def shrink_and_die(progress: Any) -> None:
        shrink(progress)
        if progress.step >= 5:
            raise Killed

    with pytest.raises(Killed):
        quick(on_progress=shrink_and_die, **changes)
    assert outcome(quick(**changes).folder) == outcome(whole.folder)


def test_what_one_row_does_not_fit_into_is_told(quick: Any, memory: list[int], tmp_path: Path) -> None:
    memory[0] = 0
    with pytest.raises(TrainingError, match=r"out of memory at step 1, one row at a time; try a smaller --max-length"):
        quick(batch_size=4)


def test_a_run_that_died_of_something_else_keeps_what_it_learnt_about_memory(
    quick: Any, memory: list[int], tmp_path: Path
) -> None:
    memory[0] = 4
    with pytest.raises(Killed):
        quick(on_progress=dying_at(1))
    assert decided(tmp_path / "run") == [[0, 2]]
    assert quick().metrics["epochs"][-1]["step"] == 6


def test_a_map_is_made_in_parts_too(checkpoint: Any, memory: list[int], tmp_path: Path) -> None:
    memory[0] = 4
    options: dict[str, Any] = {"model": str(checkpoint("bert")), "epochs": 2, "batch_size": 8, "lr": 1e-2}
    done = survey(tiny.examples(24), out=tmp_path / "map", filtered=True, **options)
    assert decided(tmp_path / "map") == [[0, 2]]
    assert any(note.startswith("memory:") for note in done.figures["notes"])


def test_parts_count_from_their_step_on() -> None:
    cuts = Cuts(None, 1, 32, ((3, 2), (10, 4)))
    assert [cuts.parts(step) for step in (0, 2, 3, 9, 10, 99)] == [1, 1, 2, 2, 4, 4]
    assert Cuts(None, 3, 32, ((3, 2),)).parts(3) == 3


def test_nothing_is_said_where_nothing_was_cut() -> None:
    assert cut_notes([], "input-mixup") == []
    assert read_cuts(None).made == ()


def test_without_a_folder_to_remember_it_in_parts_are_asked_for() -> None:
    with pytest.raises(OutOfMemory, match="at step 3; try --accumulate 4"), Cuts(None, 2, 8).watching(2, since=0):
        raise torch.OutOfMemoryError


def test_what_cannot_be_tried_again_is_raised() -> None:
    def fail() -> None:
        raise TrainingError("diverged")

    with pytest.raises(TrainingError, match="diverged"):
        retried(fail)
