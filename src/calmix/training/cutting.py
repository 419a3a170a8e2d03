"""A batch that the device's memory does not hold: taken in more parts from there on, which the run remembers."""

import gc
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from calmix.data import write_text
from calmix.errors import TrainingError
from calmix.training.folder import RUN, to_toml
from calmix.training.launching import from_main, processes

__all__ = ["Cuts", "OutOfMemory", "cut_notes", "read_cuts", "retried"]

T = TypeVar("T")

# Recipes whose loss of a row does not look at another: for all others, parts are another method.
_ROW_BY_ROW = {"erm", "label-smoothing", "erl", "distil", "back-translation"}


class OutOfMemory(TrainingError):
    """A step that did not fit into memory. `again`: the run can go on at once, its batches in more parts."""

    def __init__(self, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


@dataclass(frozen=True)
class Cuts:
    """Into how many parts the batches of a run are cut: as asked, or more, from some step on, for want of memory."""

    out: Path | None
    accumulate: int
    batch_size: int
    made: tuple[tuple[int, int], ...] = ()
    """From which step on, how many."""

    def parts(self, step: int) -> int:
        """Return how many parts the batch of a step is taken in."""
        return max([self.accumulate, *(parts for first, parts in self.made if first <= step)])

    def of_epoch(self, begun: int) -> Callable[[int], int]:
        """Return the same by a step's place in an epoch that began at some step."""
        return lambda place: self.parts(begun + place)

    @contextmanager
    def watching(self, step: int, *, since: int) -> Iterator[None]:
        """Have a step that does not fit into memory raise `OutOfMemory`, smaller parts being written down.

        `since` is the step that the run would go on from: that of its last checkpoint.
        """
        try:
            yield
        except torch.OutOfMemoryError:
            error = self._smaller(step, since)
        else:
            return
        raise error

    def _smaller(self, step: int, since: int) -> OutOfMemory:
        parts, world = self.parts(step), processes().num_processes
        what = f"out of memory at step {step + 1}"
        file = None if self.out is None else _file(self.out)
        if file is None:
            return OutOfMemory(f"{what}; try --accumulate {2 * parts}")
        if parts * world >= self.batch_size:
            return OutOfMemory(f"{what}, one row at a time; try a smaller --max-length or --gradient-checkpointing")
        record = _record(file)
        record["decided"]["parts"] = [*record["decided"].get("parts", []), [since, 2 * parts]]
        write_text(file, to_toml(record))
        # Other processes wait for this one's gradients: they have to be started anew.
        message = f"{what}; the same command goes on, with each batch in {2 * parts} parts"
        return OutOfMemory(message, again=world == 1)


def read_cuts(out: Path | None, *, accumulate: int = 1, batch_size: int = 1) -> Cuts:
    """Return how the batches of the run that `out` belongs to are cut."""
    made = () if out is None else from_main(lambda: _made(out))
    return Cuts(out, accumulate, batch_size, made)


def retried(run: Callable[[], T]) -> T:
    """Return what `run` does, given again whatever memory it lacked."""
    while True:
        try:
            return run()
        except OutOfMemory as error:
            if not error.again:
                raise
        # The error held on to what did not fit.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def cut_notes(made: Sequence[Sequence[int]], recipe: str) -> list[str]:
    """Return what to say about a run whose batches did not fit into memory: `made` is as in `Cuts`."""
    if not made:
        return []
    step, parts = max(made, key=lambda cut: cut[1])
    note = f"memory: did not hold a whole batch, which is taken in {parts} parts from step {step + 1} on"
    if recipe not in _ROW_BY_ROW:
        note += "; samples are paired inside a part, among fewer than before: that is another method"
    return [note]


def _file(out: Path) -> Path | None:
    """Return the record of the run that a folder belongs to: its own, or that of the folder it is in."""
    return next((folder / RUN for folder in (out, out.parent) if (folder / RUN).is_file()), None)


def _made(out: Path) -> tuple[tuple[int, int], ...]:
    file = _file(out)
    decided = {} if file is None else _record(file).get("decided", {})
    return tuple((int(step), int(parts)) for step, parts in decided.get("parts", []))


def _record(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))
