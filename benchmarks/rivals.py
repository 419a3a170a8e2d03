"""calmix's default beside what people do today, on the same rows, each in a process of its own.

    python benchmarks/rivals.py run --data FOLDER --rivals tfidf,frozen --seeds 0,1,2
    python benchmarks/rivals.py table

FOLDER (or $CALMIX_DATA) holds `trec6/train.jsonl` and the like, compressed or not; `--tasks` picks some of the tasks
(`few-*,trec6`). The rivals:

- tfidf: logistic regression on TF-IDF; frozen: on the encoder's mean-pooled embeddings (`rival_linear.py`);
- trainer: the Hugging Face Trainer with its defaults (`rival_trainer.py`);
- setfit: SetFit in the environment of `--setfit-python` (`rival_setfit.py`), on few rows and two tasks more;
- calmix: `calmix.train` with no options; `--variant NAME:key=value,…` adds one with some (`rival_calmix.py`);
- calmix-0.1.0: the same with the sources of another checkout, `--older PATH`.

Rivals have a temperature fitted on the dev rows; where there are few rows nobody has dev rows, and those that can do so
cheaply fit it on five folds of the training rows. Each run is a line of `runs.jsonl`, and what is there is not made
again. Predictions are kept in `--predictions`, for paired intervals.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from common import processor
from numpy.typing import NDArray
from rival_tables import KEY, key_of, read_runs, written
from rival_tasks import Sets, Task, sets_of, tasks_like

from calmix.calibration import Temperature, accuracy, ece, nll
from calmix.data import Examples
from calmix.models import resolve
from calmix.models.loading import called

HERE = Path(__file__).parent
SCRIPTS = {
    "tfidf": "rival_linear",
    "frozen": "rival_linear",
    "trainer": "rival_trainer",
    "setfit": "rival_setfit",
    "calmix": "rival_calmix",
    "calmix-0.1.0": "rival_calmix",
}
SETFIT_TOO = ("desk", "trec6")
"""Tasks with more than a few rows that SetFit is asked, too."""
BINS = 15


@dataclass(frozen=True)
class Rival:
    """Who answers: a script, what runs it, and the options it is given."""

    name: str
    script: str
    python: str = sys.executable
    sources: Path = HERE.parent / "src"
    options: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, task: Task, sets: Sets) -> bool:
        """Return whether this rival can do a task, and is to."""
        return self.name != "setfit" or (sets.train.kind == "text" and (task.few or task.name in SETFIT_TOO))


class Worker:
    """A rival's process, which answers one job after the other."""

    def __init__(self, rival: Rival, threads: int) -> None:
        words = {"PYTHONPATH": str(rival.sources), "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.rival, self.said = rival, tempfile.TemporaryFile("w+")  # noqa: SIM115 (lasts as long as the process)
        self.process = subprocess.Popen(
            [rival.python, str(HERE / f"{rival.script}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            env={**os.environ, **words},
        )

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a job; what failed says why."""
        to, back = self.process.stdin, self.process.stdout
        assert to is not None
        assert back is not None
        try:
            print(json.dumps(job), file=to, flush=True)
            line = back.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return dict(json.loads(line))
        code = self.process.wait()
        self.said.seek(0)
        return {"failed": f"{self.said.read()[-2000:]}\nthe process ended with {code}"}

    def serves(self, rival: Rival) -> bool:
        """Return whether it is that rival's, and still there."""
        same = (self.rival.script, self.rival.python, self.rival.sources)
        return same == (rival.script, rival.python, rival.sources) and self.process.poll() is None

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def write_sets(sets: Sets, folder: Path) -> list[str]:
    """Write each set as JSON Lines, and return their names."""
    named = {"train": sets.train, **({} if sets.dev is None else {"dev": sets.dev}), **sets.judged}
    for name, examples in named.items():
        columns = {role: examples.column(role) for role in _roles(examples)}
        names = examples.label_names
        columns["label"] = [names[k] if names else str(k) for k in examples.labels]
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for values in zip(*columns.values(), strict=True):
                file.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False) + "\n")
    return list(named)


def _roles(examples: Examples) -> list[str]:
    return ["text", *(name for name in ("text_b", "choices") if name in examples.table.column_names)]


@dataclass(frozen=True, eq=False)
class Said:
    """What a rival says of one set, as it is and as it should be believed: logits, and the right classes."""

    raw: NDArray[np.float64]
    calibrated: NDArray[np.float64]
    labels: NDArray[np.int64]

    def figures(self) -> dict[str, Any]:
        """Return accuracy, NLL and ECE, raw and calibrated."""
        found: dict[str, Any] = {"n": len(self.labels)}
        for stage, logits in (("raw", self.raw), ("calibrated", self.calibrated)):
            probs = np.asarray(Temperature(1.0)(logits))
            found[stage] = {
                "accuracy": float(accuracy(probs, self.labels)),
                "nll": float(nll(probs, self.labels)),
                "ece": float(ece(probs, self.labels, bins=BINS)),
            }
        return found

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return, of each row, its class, the winner, and the logarithms of their probabilities in 16 bits."""
        winner, rows = self.calibrated.argmax(axis=1), np.arange(len(self.labels))
        columns: dict[str, NDArray[Any]] = {"label": self.labels.astype(np.int16), "winner": winner.astype(np.int16)}
        for stage, logits in (("raw", self.raw), ("calibrated", self.calibrated)):
            logs = logits - logits.max(axis=1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
            columns[f"label_{stage}"] = logs[rows, self.labels].astype(np.float16)
            columns[f"winner_{stage}"] = logs[rows, winner].astype(np.float16)
        return columns


def read_answer(path: Path, judged: Mapping[str, Examples]) -> tuple[dict[str, Said], float | None]:
    """Return what a rival says of each set, and its temperature, if it has one that we fitted."""
    with np.load(path) as arrays:
        temperature = None
        if "held_out/logits" in arrays:
            held_out = arrays["held_out/logits"].astype(np.float64)
            temperature = float(Temperature.fit(held_out, arrays["held_out/labels"]).temperature)
        found = {}
        for name, examples in judged.items():
            raw = arrays[f"logits/{name}"].astype(np.float64)
            own = f"calibrated/{name}"
            calibrated = arrays[own].astype(np.float64) if own in arrays else raw / (temperature or 1.0)
            found[name] = Said(raw, calibrated, examples.labels)
    return found, temperature


def write_predictions(said: Mapping[str, Said], path: Path) -> None:
    """Write the predictions of every set as one table."""
    tables = []
    for name, part in said.items():
        columns = {"set": pa.array([name] * len(part.labels)).dictionary_encode()}
        columns |= {column: pa.array(values) for column, values in part.columns().items()}
        tables.append(pa.table(columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(tables).unify_dictionaries(), path, compression="zstd")


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    rival: Rival
    task: Task
    seed: int


class Field:
    """Where rivals meet: what is asked of them, and where it is written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.lock = options, threading.Lock()
        self.file: Path = options.out / options.file
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.failures = 0

    def key(self, job: Job) -> dict[str, Any]:
        """Return what makes a run another one."""
        asked, model = self.options, Path(called(self.options.model)).name
        return {
            "task": job.task.name,
            "rival": job.rival.name,
            "seed": job.seed,
            "model": model,
            "rows": asked.rows,
            "dev_rows": asked.dev_rows,
            "test_rows": asked.test_rows,
            "device": self.device,
        }

    def sets(self, job: Job) -> Sets:
        """Return a job's rows."""
        asked = self.options
        sizes = {"rows": asked.rows, "dev_rows": asked.dev_rows, "test_rows": asked.test_rows}
        with self.lock:  # files are read once
            return sets_of(job.task, asked.data, seed=job.seed, **sizes)

    def work(self, waiting: deque[Job]) -> None:
        """Make runs until none waits, in processes that last as long as their rival is asked."""
        worker: Worker | None = None
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:
                break
            if worker is not None and not worker.serves(job.rival):
                worker.close()
                worker = None
            sets = self.sets(job)
            if not job.rival.takes(job.task, sets):
                continue
            worker = worker or Worker(job.rival, self.options.threads)
            self.run(job, sets, worker)
        if worker is not None:
            worker.close()

    def run(self, job: Job, sets: Sets, worker: Worker) -> None:
        """Make one run, and write what came of it."""
        key = self.key(job)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            reply = worker.ask(
                {
                    "folder": name,
                    "sets": write_sets(sets, folder),
                    "names": list(sets.train.label_names),
                    "rival": job.rival.name,
                    "model": resolve(self.options.model),
                    "default_model": self.options.model == "minilm",
                    "max_length": self.options.max_length,
                    "seed": job.seed,
                    "sources": str(job.rival.sources.resolve()),
                    "pairs": self.options.setfit_pairs,
                    "options": dict(job.rival.options),
                }
            )
            if "failed" in reply:
                with self.lock:
                    self.failures += 1
                    print(f"{job.task.name} {job.rival.name} {job.seed} FAILED\n{reply['failed']}", flush=True)
                return
            said, temperature = read_answer(folder / "answer.npz", sets.judged)
        kept = "--".join(str(key[part]) for part in KEY) + ".parquet"
        write_predictions(said, self.options.predictions / kept)
        record = {
            **key,
            "options": dict(job.rival.options),
            "commit": commit_of(job.rival) if job.rival.script == "rival_calmix" else None,
            "n_train": len(sets.train),
            "n_dev": 0 if sets.dev is None else len(sets.dev),
            "classes": len(sets.train.label_names),
            "max_length": self.options.max_length,
            "temperature": temperature,
            **{name: rounded(reply[name]) for name in ("chosen", "cpu_seconds", "wall_seconds")},
            "machine": machine(),
            "threads": self.options.threads,
            "figures": {name: part.figures() for name, part in said.items()},
        }
        with self.lock:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rounded(record), ensure_ascii=False) + "\n")
            show(record, sys.stdout)


def show(record: Mapping[str, Any], where: TextIO) -> None:
    """Print a run in a line."""
    figures = record["figures"]["test"]["calibrated"]
    told = f"{100 * figures['accuracy']:5.1f} %  NLL {figures['nll']:.3f}  ECE {100 * figures['ece']:4.1f}"
    seconds = " + ".join(f"{value:.0f}" for value in record["cpu_seconds"].values())
    print(f"{record['task']:18} {record['rival']:14} {record['seed']}  {told}  {seconds} s", file=where, flush=True)


def rounded(value: Any) -> Any:
    """Return numbers with six digits, inside of dictionaries too."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def machine() -> str:
    """Return what the runs were made on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else processor()


def commit_of(rival: Rival) -> str | None:
    """Return the commit that a rival's sources are at, with a + where they were changed; None outside of git."""
    try:
        words = ["git", "-C", str(rival.sources), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def variant(told: str) -> Rival:
    """Return calmix with options, from `NAME:key=value,…`; values are JSON, or words."""
    name, _, rest = told.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")]
    if not name or not all(key and sign for key, sign, _ in pairs):
        raise SystemExit(f"--variant {told}: say NAME:key=value,…")
    if name in SCRIPTS:
        raise SystemExit(f"--variant {told}: {name} is a rival's own name; take another")
    return Rival(name, "rival_calmix", options={key: _value(text) for key, _, text in pairs})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def rivals_of(options: argparse.Namespace) -> list[Rival]:
    """Return who is asked."""
    found = []
    for name in filter(None, options.rivals.split(",")):
        if name not in SCRIPTS:
            raise SystemExit(f"no rival is called {name!r}; there are {', '.join(SCRIPTS)}")
        more: dict[str, Any] = {}
        if name == "setfit":
            if options.setfit_python is None:
                raise SystemExit("setfit: give --setfit-python, the Python of an environment that has it")
            more["python"] = str(options.setfit_python)
        if name == "calmix-0.1.0":
            if options.older is None or not (options.older / "src" / "calmix").is_dir():
                raise SystemExit("calmix-0.1.0: give --older, a checkout of that version")
            more["sources"] = options.older.resolve() / "src"
        found.append(Rival(name, SCRIPTS[name], **more))
    return found + [variant(told) for told in options.variant]


def runs_to_make(where: Field, rivals: Iterable[Rival], tasks: list[Task], seeds: list[int]) -> deque[Job]:
    """Return the runs that are not there yet: a rival after the other, so that its processes last, and by seed."""
    known = {key_of(run) for run in read_runs(where.options.out)}
    jobs = (Job(rival, task, seed) for rival, seed, task in product(rivals, seeds, tasks))
    return deque(job for job in jobs if key_of(where.key(job)) not in known)


def run(options: argparse.Namespace) -> None:
    """Make the runs that are asked for."""
    if options.data is None:
        raise SystemExit("give --data, or set CALMIX_DATA")
    where = Field(options)
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    waiting = runs_to_make(where, rivals_of(options), tasks_like(options.tasks), seeds)
    print(f"{len(waiting)} runs are not there yet", flush=True)
    with ThreadPoolExecutor(options.jobs) as slots:
        for slot in [slots.submit(where.work, waiting) for _ in range(options.jobs)]:
            slot.result()
    if where.failures:
        raise SystemExit(f"{where.failures} runs failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="make runs")
    told = os.environ.get("CALMIX_DATA")
    running.add_argument("--data", type=Path, default=told and Path(told), help="default: $CALMIX_DATA")
    running.add_argument("--tasks", default="*")
    running.add_argument("--rivals", default="tfidf,frozen,trainer,calmix")
    running.add_argument("--variant", action="append", default=[], metavar="NAME:key=value,…")
    running.add_argument("--older", type=Path, metavar="PATH", help="a checkout of 0.1.0")
    running.add_argument("--setfit-python", type=Path, metavar="PATH")
    running.add_argument("--setfit-pairs", type=int, default=20_000, help="so many pairs at most")
    running.add_argument("--model", default="minilm")
    running.add_argument("--max-length", type=int, default=256)
    running.add_argument("--seeds", default="0,1,2")
    running.add_argument("--rows", type=int, default=7500)
    running.add_argument("--dev-rows", type=int, default=1000)
    running.add_argument("--test-rows", type=int, default=3000)
    running.add_argument("--jobs", type=int, default=1, help="runs made at the same time")
    running.add_argument("--threads", type=int, default=1, help="threads of each")
    running.add_argument("--file", default="runs.jsonl", help="the file in --out; any runs*.jsonl there is read")
    running.set_defaults(act=run)
    tabling = commands.add_parser("table", help="write README.md from the runs that are there")
    tabling.add_argument("--model", default="minilm")
    tabling.add_argument("--of", default="calmix", help="who is compared with everybody else")
    tabling.add_argument("--against", default="frozen", help="whose NLL the ratios are to")
    tabling.set_defaults(act=written)
    for command in (running, tabling):
        command.add_argument("--out", type=Path, default=HERE.parent / "results" / "rivals")
        command.add_argument("--predictions", type=Path, default=HERE.parent / "predictions" / "rivals")
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
