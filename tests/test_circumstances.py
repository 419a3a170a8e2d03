"""Disks that are full, folders that take nothing, files and clocks that change: one line, and later it goes on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from faults import Command, Death, Ended, commands, forked, left_in, limit_files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

Reference = Callable[[str], tuple[Command, dict[str, Any]]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return `reference(name)`: a command, and what it leaves when nothing is in its way."""
    root = tmp_path_factory.mktemp("circumstances")
    known = commands(root / "inputs")

    @cache
    def found(name: str) -> tuple[Command, dict[str, Any]]:
        place = known[name].place(root / name)
        ended = forked(partial(known[name].run, place), place)
        assert ended.code == 0, ended.err
        return known[name], left_in(place)

    return found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return `disk(options)`: a file system of its own, mounted with these options, or changed to them."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted: list[str] = []

    def mount(options: str) -> Path:
        how = f"remount,{options}" if mounted else options
        command = ["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("file systems cannot be mounted here")
        mounted.append(options)
        return place

    yield mount
    if mounted:
        # Lazily: on a busy machine an ended process may not have let go of it yet.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def told(ended: Ended, words: str, code: int = 1) -> None:
    """Check that a command ended with one line that says so."""
    lines = [line for line in ended.err.splitlines() if not line.startswith("· ")]
    assert (ended.code, len(lines)) == (code, 1), ended.err
    assert lines[0].startswith("calmix: ")
    assert words in lines[0]


def goes_on(command: Command, place: Path, expected: dict[str, Any]) -> None:
    again = command.again(place)
    assert again.code == 0, again.err
    assert left_in(place) == expected


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("train", 300),
        ("calibrate", 24),
        *(
            pytest.param(name, size, marks=pytest.mark.slow)
            for name in ("train", "train, guided", "map", "distil", "study")
            for size in (4, 90, 200, 300, 400)
        ),
    ],
)
def test_a_full_disk_is_told_and_the_same_command_goes_on_once_there_is_room(
    reference: Reference, disk: Callable[[str], Path], name: str, size: int
) -> None:
    command, expected = reference(name)
    place = disk(f"size={size}k")
    ended = forked(partial(command.run, place), place)
    enough = 200 if name == "distil" else 300  # what a student leaves behind fits into less
    if ended.code != 0 or size < enough:
        told(ended, "No space left on device")
    disk("size=64m")
    goes_on(command, place, expected)


def test_a_file_that_may_not_grow_is_told_and_the_same_command_goes_on(reference: Reference, tmp_path: Path) -> None:
    command, expected = reference("train")
    place = command.place(tmp_path / "place")

    def limited() -> None:
        limit_files(20_000)
        command.run(place)

    told(forked(limited, place), "File too large")
    goes_on(command, place, expected)


def test_a_folder_on_a_read_only_disk_is_told_and_the_same_command_goes_on(
    reference: Reference, disk: Callable[[str], Path]
) -> None:
    command, expected = reference("train")
    place = disk("ro")
    told(forked(partial(command.run, place), place), "cannot be written to (Read-only file system)", 2)
    disk("rw")
    # It becomes read-only while it is written to: as a disk does that finds itself broken.
    forked(partial(command.run, place), place, Death(change=40))
    disk("ro")
    told(forked(partial(command.run, place), place), "Read-only file system", 2)
    disk("rw")
    goes_on(command, place, expected)


def test_a_table_that_is_gone_when_it_is_needed_again_is_told_and_the_map_goes_on(
    reference: Reference, tmp_path: Path
) -> None:
    known, _ = reference("map")
    table = tmp_path / "train.csv"
    content = Path(known.words[1]).read_bytes()
    table.write_bytes(content)
    command = Command("map", ("map", str(table), *known.words[2:-1], "--clean", str(tmp_path / "clean.csv")))
    place = command.place(tmp_path / "place")

    def removing() -> None:
        from calmix.training import surveying

        write = surveying.write_map

        def late(*args: Any) -> None:
            table.unlink()
            write(*args)

        surveying.write_map = late
        command.run(place)

    told(forked(removing, place), "train.csv: no such file", 2)
    assert not (place / "run" / "metrics.json").exists()
    table.write_bytes(content)
    assert command.again(place).code == 0
    assert (tmp_path / "clean.csv").is_file()
    assert (place / "run" / "metrics.json").is_file()


def test_a_clock_that_goes_backwards_changes_nothing(reference: Reference, tmp_path: Path) -> None:
    command, expected = reference("train")
    place = command.place(tmp_path / "place")

    def backwards() -> None:
        now = [2e9]

        def earlier() -> float:
            now[0] -= 3600
            return now[0]

        time.time = earlier
        command.run(place)

    forked(backwards, place, Death(change=60))
    ended = forked(backwards, place)
    assert ended.code == 0, ended.err
    assert left_in(place) == expected


@pytest.mark.parametrize(("name", "number"), [("map", signal.SIGINT), ("study", signal.SIGTERM)])
def test_a_signal_stops_any_training_command_in_one_line_and_it_goes_on(
    reference: Reference, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    command, expected = reference(name)
    place = command.place(tmp_path / "place")

    def stopped() -> None:
        from calmix.training.stepping import Stepper

        step, taken = Stepper.step, []

        def pressed(self: Stepper, *args: Any) -> None:
            taken.append(1)
            if len(taken) == 3:
                os.kill(os.getpid(), number)
            step(self, *args)

        Stepper.step = pressed  # type: ignore[method-assign]
        command.run(place)

    told(forked(stopped, place), "stopped at step 3 of 4, saved; the same command goes on from there", 130)
    goes_on(command, place, expected)


@pytest.mark.parametrize("name", ["train", "train, guided"])
def test_a_second_command_in_a_folder_that_is_written_to_is_told_so(
    reference: Reference, tmp_path: Path, name: str
) -> None:
    command, expected = reference(name)
    place = command.place(tmp_path / "place")

    def meeting() -> None:
        from calmix.training import loop

        predict, met = loop.predict_logits, []

        def slowly(*args: Any, **kwargs: Any) -> Any:
            if not met:
                met.append(forked(partial(command.run, place), place))
                told(met[0], "another calmix command is writing to it right now", 2)
            return predict(*args, **kwargs)

        loop.predict_logits = slowly
        command.run(place)

    ended = forked(meeting, place)
    assert ended.code == 0, ended.err
    assert left_in(place) == expected
