"""Large inputs through whole commands, with the most memory each took: `python benchmarks/load.py --json out.json`.

A million texts predicted, a million rows mapped, a thousand runs in one study's folder, with a model so small that
what is measured is everything around it. Each command is a process of its own; memory is what it grew by above a
process that has imported the same and read nothing. `--rows` and `--runs` make it smaller.
"""

import argparse
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np

from calmix.cli.main import main as run_command

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
tiny: Any = importlib.import_module("tiny")  # the tests' model: two layers of width 16


def table(path: Path, rows: int, *, seed: int = 0) -> Path:
    """Write so many short texts with a label."""
    rng = np.random.default_rng(seed)
    words, lengths = np.array(tiny.WORDS), rng.integers(4, 16, rows)
    drawn = words[rng.integers(0, len(words), int(lengths.sum()))].tolist()
    ends = np.cumsum(lengths).tolist()
    with path.open("w") as stream:
        stream.write("text,label\n")
        for row, (end, length) in enumerate(zip(ends, lengths.tolist(), strict=True)):
            stream.write(f"{' '.join(drawn[end - length : end])} {row},{tiny.LABELS[row % 3]}\n")
    return path


def measured(work: Callable[[], None]) -> dict[str, float]:
    """Return the seconds and the growth in MiB of a copy of this process that does some work."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = _mebibytes(resource.RUSAGE_SELF)
            began = time.perf_counter()
            with open(os.devnull, "w") as nowhere:
                sys.stdout = sys.stderr = nowhere
                work()
            figures = {"seconds": time.perf_counter() - began, "mebibytes": _mebibytes(resource.RUSAGE_SELF) - before}
            os.write(write, json.dumps(figures).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told, "the command failed"
    return {name: round(value, 1) for name, value in json.loads(told).items()}


def _mebibytes(who: int) -> float:
    return resource.getrusage(who).ru_maxrss / 1024


def command(*words: Any) -> dict[str, float]:
    def work() -> None:
        try:
            run_command([str(word) for word in words])
        except SystemExit as stop:
            if stop.code:
                raise

    return measured(work)


def many_runs(folder: Path, model: Path, runs: int) -> dict[str, float]:
    """Make the tables of a study of so many runs: one is trained, the others are copies of it."""
    from calmix.study import Order, conduct, prepare

    for name, seed in (("train", 0), ("dev", 1), ("test", 2)):
        table(folder / f"{name}.csv", 60, seed=seed)
    tasks = '[task.t]\ntrain = "train"\ndev = "dev"\ntest = "test"\n[training]\nepochs = 1\n'
    methods = '[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "erl"\n'
    file = folder / "study.toml"
    head = f'models = ["{model}"]\nkeep = "metrics"\nfigures = ["accuracy", "ece"]\n'
    file.write_text(f"{head}seeds = 1\n{tasks}{methods}")
    first = prepare(Order(file, folder / "first", data=folder))
    conduct(first)
    file.write_text(f"{head}seeds = {runs // 2}\n{tasks}{methods}")
    whole = prepare(Order(file, folder / "out", data=folder))
    made = {spec.recipe: first.storage.folder(key) for key, spec in first.plan.runs.items()}
    for key, spec in whole.plan.runs.items():
        shutil.copytree(made[spec.recipe], whole.storage.folder(key))
    return command("study", file, "--data", folder, "--out", folder / "out", "--no-report")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    for module in ("report", "study", "training"):
        importlib.import_module(f"calmix.{module}")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"rows": options.rows, "runs": options.runs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny.build("bert", folder / "model")
        texts = table(folder / "texts.csv", options.rows)
        found["file_mebibytes"] = round(texts.stat().st_size / 2**20, 1)
        found["predict"] = command("predict", model, texts, "--out", folder / "predictions.parquet")
        print("predict", found["predict"], flush=True)
        found["study"] = many_runs(folder, model, options.runs)
        print("study", found["study"], flush=True)
        words = ["--model", model, "--epochs", 1, "--batch-size", 1024, "--out", folder / "map", "--no-report"]
        found["map"] = command("map", texts, *words)
        print("map", found["map"], flush=True)
    text = json.dumps(found, indent=2)
    if options.json is not None:
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
