"""Ways for a command to die, in forked copies of a process that has everything imported, and what must be left after.

A victim dies before a given change of a file below its folder, after so much of the processor's time, or in the
middle of writing a file: the system ends it at once each time, and nothing of Python runs any more.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import tiny

from calmix.data import Examples, write_table

# What Python tells before it changes a file, and where, among the arguments, the folder of a bare name is.
_CHANGES = {"os.rename": 2, "os.remove": 1, "os.mkdir": 2, "os.rmdir": 1}
_WRITING = os.O_WRONLY | os.O_RDWR

# Files larger than this cannot be written: run.toml and the state's JSON, logs and predictions, weights.
SIZES = (300, 3_000, 30_000)
RANDOM = 20
"""At how many random moments each command is killed."""


@dataclass(frozen=True)
class Death:
    """When a victim dies: nothing given, it lives."""

    change: int = 0
    """Before the n-th change of a file, counted from 1."""
    seconds: float = 0.0
    """After so much time on the processor."""
    size: int = 0
    """While it writes the byte behind this one into any file."""

    def __str__(self) -> str:
        if self.change:
            return f"before change {self.change}"
        if self.seconds:
            return f"after {self.seconds:.3f} s"
        return f"at byte {self.size} of a file" if self.size else "never"


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int | None
    """The exit code; None where the system ended it."""
    err: str = ""
    changes: tuple[str, ...] = ()
    """What was changed below the watched folder, in order."""
    seconds: float = 0.0
    """The processor's time it took."""

    @property
    def killed(self) -> bool:
        return self.code is None


def forked(work: Callable[[], Any], watched: Path, death: Death | None = None) -> Ended:
    """Return how `work` ended in a copy of this process, which dies as told."""
    with tempfile.TemporaryDirectory() as scratch:
        report, errors = Path(scratch) / "report", Path(scratch) / "errors"
        child = os.fork()
        if child == 0:  # nothing of pytest may run here: whatever happens, the process ends
            code = 70
            try:
                code = _victim(work, watched, death or Death(), report, errors)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        err = errors.read_text(errors="replace") if errors.is_file() else ""
        if os.WIFSIGNALED(status):
            return Ended(None, err)
        told = json.loads(report.read_text()) if report.is_file() else {"changes": [], "seconds": 0.0, "modules": []}
        for module in told["modules"]:  # the copies after this one have it already: half of a short command is imports
            if module not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(module)
        return Ended(os.WEXITSTATUS(status), err, tuple(told["changes"]), told["seconds"])


def limit_files(size: int | None) -> None:
    """Let no file of this process grow beyond so many bytes; None: as far as the system lets it."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def _victim(work: Callable[[], Any], watched: Path, death: Death, report: Path, errors: Path) -> int:
    before = set(sys.modules)
    gc.freeze()  # or the first collection copies all memory of the process before
    with errors.open("w") as sink, open(os.devnull, "w") as nowhere:
        os.dup2(sink.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
        sys.stderr, sys.stdout = sink, nowhere
        changes = _watch(watched, death.change)
        began = time.process_time()
        if death.size:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            limit_files(death.size)
        if death.seconds:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, death.seconds)
        code = 0
        try:
            work()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc(file=sink)
            code = 70
        signal.setitimer(signal.ITIMER_PROF, 0)
        told = {"changes": changes, "seconds": time.process_time() - began, "modules": [*sys.modules.keys() - before]}
        sink.flush()
    limit_files(None)  # the report is no part of what may not grow
    report.write_text(json.dumps(told))
    return code


def _watch(watched: Path, fatal: int) -> list[str]:
    """Return the changes below a folder from now on, as they come; the process dies before the one asked for."""
    root = os.path.realpath(watched)
    changes: list[str] = []

    def changing(what: str, place: str) -> None:
        if not _below(place, root):
            return
        # Folders that are there are not made, and what is not there is not removed.
        if os.path.lexists(place) == (what == "mkdir") and what in ("mkdir", "remove", "rmdir"):
            return
        changes.append(f"{what} {os.path.relpath(place, root)}")
        if len(changes) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not arguments or isinstance(arguments[0], int):  # a file that is open already
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            changing("open", os.path.abspath(os.fsdecode(arguments[0])))
        elif event in _CHANGES:
            folder = arguments[_CHANGES[event]]
            base = os.getcwd() if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")
            changing(event.removeprefix("os."), os.path.normpath(os.path.join(base, os.fsdecode(arguments[0]))))

    def fsync(descriptor: int) -> None:
        # The system goes on living: nothing has to be flushed, and the tests are faster.
        with contextlib.suppress(OSError):
            changing("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))

    os.fsync = fsync
    sys.addaudithook(hook)
    return changes


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)


def left_in(folder: Path) -> dict[str, Any]:
    """Return every file below a folder with what it says, except how long anything took."""
    return {str(p.relative_to(folder)): _said(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def _said(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    if path.name == "study.parquet":
        table = pa.parquet.read_table(path)
        return [column for name, column in zip(table.column_names, table.columns, strict=True) if name != "seconds"]
    if path.name == "report.html":
        return path.stat().st_size > 0
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key != "seconds"}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Command:
    """A command that is killed and given again, and what it reads, made once."""

    name: str
    words: tuple[str, ...]
    """Its words; OUT is where it writes."""
    start: Path | None = None
    """What is in the place before it begins."""
    every: int = 2
    """A checkpoint is saved after the first of so many steps."""

    def place(self, folder: Path) -> Path:
        """Return a new folder for the command to work in."""
        if self.start is None:
            folder.mkdir(parents=True)
        else:
            shutil.copytree(self.start, folder)
        return folder

    def run(self, place: Path) -> None:
        """Give the command in this process, whose end it is."""
        from calmix.cli.main import main
        from calmix.training import loop
        from calmix.training.keeping import Keeper

        def save_if_due(keeper: Keeper) -> None:
            if keeper.run.step % self.every == 1 % self.every:
                keeper.save()

        loop._POLL = 0.0
        Keeper.save_if_due = save_if_due  # type: ignore[method-assign]
        os.chdir(place)
        main([word.replace("OUT", str(place / "run")) for word in self.words])

    def again(self, place: Path) -> Ended:
        """Give it once more, and return how it ended; that all was done already is as good as done."""
        ended = forked(partial(self.run, place), place)
        done = ended.code == 2 and ("finished; its figures are in" in ended.err or "holds a model already" in ended.err)
        return replace(ended, code=0) if done else ended


def commands(root: Path) -> dict[str, Command]:
    """Return the commands that are killed, with what they read made below a folder."""
    for module in ("calmix.cli.main", "calmix.training", "calmix.report", "calmix.study"):
        importlib.import_module(module)  # every copy of this process has it then already
    for module in ("backend_agg", "backend_svg"):
        importlib.import_module(f"matplotlib.backends.{module}")
    templates = importlib.import_module("calmix.report.page")._environment()
    for name in templates.list_templates(["html"]):
        templates.get_template(name)
    root.mkdir(parents=True, exist_ok=True)
    files = {name: _table(tiny.examples(n, seed=i), root / "data" / f"{name}.csv")
             for i, (name, n) in enumerate((("train", 16), ("dev", 12), ("test", 12)))}  # fmt: skip
    # One that knows these labels already, and one to which a head is fitted.
    known, model = str(tiny.build("bert", root / "known")), str(tiny.build("bert", root / "model", classes=4))
    (root / "study.toml").write_text(
        f'models = ["{model}"]\nseeds = 1\nkeep = "metrics"\nfigures = ["accuracy", "ece"]\n'
        '[task.tiny]\ntrain = "train"\ndev = "dev"\ntest = "test"\n'
        "[training]\nepochs = 2\nbatch_size = 8\nlr = 1e-2\n"
        '[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "distil"\nteacher = "erm"\n'
    )
    usual = ("--batch-size", "8", "--epochs", "2", "--lr", "1e-2", "--out", "OUT")
    learn = ("train", files["train"], "--model", model, *usual)
    train = (*learn, "--dev", files["dev"])
    found = [
        Command("train", (*train, "--recipe", "input-mixup", "--checkpoint-minutes", "0"), every=1),
        Command("train, folded", (*learn, "--folds", "2")),
        Command("train, guided", (*train, "--recipe", "tdmixup")),
        Command("map", ("map", files["train"], "--model", model, *usual, "--filter")),
        Command("distil", ("distil", known, files["train"], "--dev", files["dev"], "--student", model, *usual)),
        Command("calibrate", ("calibrate", known, files["dev"], "--out", "OUT", "--method", "vector")),
        Command("study", ("study", str(root / "study.toml"), "--data", str(root / "data"), "--out", "OUT")),
    ]
    first = found[0].place(root / "finished")
    ended = forked(partial(found[0].run, first), first)
    assert ended.code == 0, ended.err
    found.append(Command("report", ("report", "OUT"), start=first))
    return {command.name: command for command in found}


def _table(examples: Examples, path: Path) -> str:
    labels = [examples.label_names[k] for k in examples.labels]
    write_table(examples.table.append_column("label", pa.array(labels)), path)
    return str(path)


def deaths(name: str, ended: Ended, every: int = 1) -> Iterator[tuple[str, Death]]:
    """Yield each way in which a command is killed, by kind; its random moments are the same every time."""
    for change in range(1, len(ended.changes) + 1, every):
        yield "changes", Death(change=change)
    draw = random.Random(name)
    for _ in range(RANDOM):
        yield "moments", Death(seconds=draw.random() * ended.seconds)
    for size in SIZES:
        yield "sizes", Death(size=size)


def tried(command: Command, root: Path, *, every: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a command leaves if it is left alone, and how often it left that after it was killed in each way."""
    reference = command.place(root / "reference")
    ended = forked(partial(command.run, reference), reference)
    assert ended.code == 0, ended.err
    expected = left_in(reference)
    found: dict[str, Any] = {"changes_there_are": len(ended.changes), "every": every}
    for kind, death in deaths(command.name, ended, every):
        place = command.place(root / "place")
        victim = forked(partial(command.run, place), place, death)
        again = command.again(place)
        same = again.code == 0 and left_in(place) == expected
        count(found, kind, str(death), died=victim.killed, same=same)
        shutil.rmtree(place)
    return expected, found


def count(found: dict[str, Any], kind: str, what: str, *, died: bool, same: bool) -> None:
    """Count what came of a fault, and keep what it was if something was lost."""
    counted = found.setdefault(kind, {"tried": 0, "died": 0, "same": 0, "failed": []})
    counted["tried"] += 1
    counted["died"] += died
    counted["same"] += same
    if not same:
        counted["failed"].append(what)
