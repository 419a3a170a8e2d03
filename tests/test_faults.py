"""Whatever a command dies of, the same command goes on and leaves what it would have left.

Killed at every change of a file, at random moments, and in the middle of writing: weights, dynamics, figures and
files are those of a run that was left alone, bit for bit. `tools/reliability_page.py` writes the table of it all.
"""

import os
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from faults import SIZES, Command, Death, Ended, commands, forked, left_in, tried

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

NAMES = ("train", "train, folded", "train, guided", "map", "distil", "calibrate", "study", "report")

Reference = Callable[[str], tuple[Command, Ended, dict[str, Any]]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    """The commands by name, with what they read."""
    return commands(tmp_path_factory.mktemp("faults") / "inputs")


@pytest.fixture(scope="module")
def reference(inputs: dict[str, Command], tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return `reference(name)`: a command, how it ends when it is left alone, and what it leaves."""
    root = tmp_path_factory.mktemp("references")

    @cache
    def found(name: str) -> tuple[Command, Ended, dict[str, Any]]:
        place = inputs[name].place(root / name)
        ended = forked(partial(inputs[name].run, place), place)
        assert ended.code == 0, ended.err
        return inputs[name], ended, left_in(place)

    return found


def check(reference: Reference, name: str, death: Death, place: Path) -> bool:
    """Kill a command, give it again, compare what is left, and return whether it died at all."""
    command, _, expected = reference(name)
    command.place(place)
    ended = forked(partial(command.run, place), place, death)
    again = command.again(place)
    assert again.code == 0, f"{death}: {again.err}"
    assert left_in(place) == expected, f"{death}"
    return ended.killed


@pytest.mark.parametrize("name", NAMES)
def test_killed_before_a_change_of_a_file_nothing_is_lost(reference: Reference, tmp_path: Path, name: str) -> None:
    changes = len(reference(name)[1].changes)
    assert check(reference, name, Death(change=random.Random(name).randint(1, changes)), tmp_path / "place")


@pytest.mark.parametrize(("name", "share"), [("train", 0.8), ("map", 0.5)])
def test_killed_at_some_moment_nothing_is_lost(reference: Reference, tmp_path: Path, name: str, share: float) -> None:
    check(reference, name, Death(seconds=share * reference(name)[1].seconds), tmp_path / "place")


@pytest.mark.parametrize(("name", "size"), [("train", SIZES[-1])])
def test_killed_in_the_middle_of_a_file_nothing_is_lost(
    reference: Reference, tmp_path: Path, name: str, size: int
) -> None:
    assert check(reference, name, Death(size=size), tmp_path / "place")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_anywhere_nothing_is_lost(inputs: dict[str, Command], tmp_path: Path, name: str) -> None:
    """Before every change of a file, at seeded random moments, amid files: a quarter of an hour of one core for all."""
    _, found = tried(inputs[name], tmp_path)
    assert [found[kind]["failed"] for kind in ("changes", "moments", "sizes")] == [[], [], []]
    assert found["changes"]["died"] == found["changes_there_are"] > 0
    # The time a process takes is not the same twice: some may be done before.
    assert found["moments"]["died"] > found["moments"]["tried"] / 2
