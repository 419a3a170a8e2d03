"""A run in two halves: prepared, then, once it is trained, finished."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from calmix.training.halves import Run, alone, begun, ended


class Trained:
    """Stands for a run that is ready: its training gives what it was told to."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def fit(self) -> Any:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def stages(outcome: Any, seen: list[str], *, dry: bool = False, on_note: Any = None) -> Generator[Any, Any, Run]:
    """Two halves around a training."""
    if dry:
        return Run(Path("dry"), {})
    try:
        done = yield Trained(outcome)
    except BaseException as error:
        seen.append(f"taken back: {error!r}")
        raise
    return Run(Path("run"), {"done": done})


def test_both_halves_and_the_training_between_them_are_one_function() -> None:
    run = alone(stages)("weights", [])
    assert run == Run(Path("run"), {"done": "weights"})
    assert run.model == Path("run/model")
    assert "done" not in repr(run)


def test_a_dry_run_ends_before_its_training() -> None:
    assert alone(stages)(ValueError("never trained"), [], dry=True).folder == Path("dry")
    assert isinstance(begun(stages(None, [], dry=True)), Run)


@pytest.mark.parametrize("error", [ValueError("diverged"), KeyboardInterrupt()])
def test_a_training_that_fails_fails_the_run_which_takes_back_what_it_began(error: BaseException) -> None:
    seen: list[str] = []
    with pytest.raises(type(error)):
        alone(stages)(error, seen)
    assert seen == [f"taken back: {error!r}"]


def test_the_halves_can_be_taken_one_by_one() -> None:
    making = stages("weights", [])
    ready = begun(making)
    assert not isinstance(ready, Run)
    assert ended(making, "elsewhere").metrics == {"done": "elsewhere"}  # type: ignore[arg-type]
