"""What every rival's process does: read jobs, answer them, and say what they cost. It needs numpy alone.

A job is a line of JSON on standard input: a folder with a JSON Lines file for each set (`train`, `test`, other domains,
and `dev` where there is one), and what the rival is told. The answer is a line of JSON on standard output, and
`answer.npz` in the folder: the logits of each set, by its name.
"""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """Texts, with their second texts or choices if they have any, and the class of each (the right choice's index)."""

    text: list[str]
    label: NDArray[np.int64]
    text_b: list[str] | None = None
    choices: list[list[str]] | None = None

    def __len__(self) -> int:
        return len(self.text)

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """How many choices each row has; None where there are none."""
        return None if self.choices is None else np.array([len(row) for row in self.choices])

    def take(self, indices: NDArray[np.int64]) -> "Rows":
        """Return the rows at `indices`, in that order."""

        def some(column: Any) -> Any:
            return None if column is None else [column[i] for i in indices]

        return Rows(some(self.text), self.label[indices], some(self.text_b), some(self.choices))


def read_rows(path: Path, names: list[str]) -> Rows:
    """Return the rows of a JSON Lines file; labels become their place in `names`, if there are any names."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    place = {name: k for k, name in enumerate(names)}
    return Rows(
        [row["text"] for row in rows],
        np.array([place[row["label"]] if names else int(row["label"]) for row in rows], dtype=np.int64),
        [row["text_b"] for row in rows] if "text_b" in rows[0] else None,
        [row["choices"] for row in rows] if "choices" in rows[0] else None,
    )


@dataclass
class Clock:
    """Seconds of work, by what the work was: of processors, those of child processes included, and on the wall."""

    cpu: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, work: str) -> Iterator[None]:
        """Count what happens inside as this work."""
        cpu, wall = processor_seconds(), time.perf_counter()
        yield
        self.cpu[work] = self.cpu.get(work, 0.0) + processor_seconds() - cpu
        self.wall[work] = self.wall.get(work, 0.0) + time.perf_counter() - wall

    def add(self, work: str, seconds: float) -> None:
        """Count seconds that were spent earlier, on one thread, as this work's."""
        self.cpu[work] = self.cpu.get(work, 0.0) + seconds
        self.wall[work] = self.wall.get(work, 0.0) + seconds


def processor_seconds() -> float:
    """Return the seconds that processors have worked for this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


@dataclass(frozen=True)
class Answer:
    """What a rival says: logits of every set that it is judged on, and what a temperature can be fitted on."""

    logits: dict[str, NDArray[Any]]
    clock: Clock
    chosen: dict[str, Any] = field(default_factory=dict)
    """What it chose by itself, for the record."""
    held_out: tuple[NDArray[Any], NDArray[np.int64]] | None = None
    """Logits and labels of rows that it did not learn from; None where it has none."""
    calibrated: dict[str, NDArray[Any]] | None = None
    """Logits as they should be believed, of a rival that calibrates itself."""


def serve(answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Answer jobs until there are no more. What libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            reply = _kept(answer(job), Path(job["folder"]))
        except Exception:
            reply = {"failed": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)


def _kept(said: Answer, folder: Path) -> dict[str, Any]:
    arrays = {f"logits/{name}": values for name, values in said.logits.items()}
    arrays |= {f"calibrated/{name}": values for name, values in (said.calibrated or {}).items()}
    if said.held_out is not None:
        arrays["held_out/logits"], arrays["held_out/labels"] = said.held_out
    np.savez(folder / "answer.npz", **arrays)
    return {"chosen": said.chosen, "cpu_seconds": said.clock.cpu, "wall_seconds": said.clock.wall}
