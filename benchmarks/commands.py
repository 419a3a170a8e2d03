"""What one waits for at the shell: the first step of `calmix train`, and seeds as commands of their own or as a study.

    python benchmarks/commands.py --data pairs.jsonl --model minilm --rows 20000 --seeds 10

Every time is that of a process from its start: importing, reading, tokenising, capturing, training, judging, writing.
The first step is over when the device has done it; it is waited for twice, first as on a machine where no kernel has
been compiled yet, then with what that has left. Python's byte code is there each time, as pip leaves it: a process
before all others writes what is missing. Of the commands two are made and their mean stands for all; the study,
one command for all seeds, makes its tables, too. With `--seeds 0` the first step alone is timed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import device_name

from calmix.data import read_table
from calmix.data.corpus import corpus_path

# What processes find around them.
AROUND = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

# Runs the command line until a step has been made, and says when that was.
UNTIL_FIRST_STEP = """
import os, sys, time
import torch
from calmix.training import stepping
made = stepping.Stepper.step
def step(*given):
    made(*given)
    if torch.cuda.is_available(): torch.cuda.synchronize()
    print("first step at", time.time(), flush=True)
    os._exit(0)
stepping.Stepper.step = step
from calmix.cli import main
sys.exit(main())
"""


def command(*words: str) -> float:
    """Run calmix with these words in a new process and return the seconds that it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "calmix", *words], check=True, stdout=subprocess.DEVNULL, env=AROUND)
    return time.perf_counter() - began


def first_step(*words: str, compiled: Path) -> float:
    """Return the seconds from starting a process to the end of its first step; kernels are kept in a folder."""
    began = time.time()
    code, around = [sys.executable, "-c", UNTIL_FIRST_STEP, *words], {**AROUND, "TRITON_CACHE_DIR": str(compiled)}
    told = subprocess.run(code, check=True, stdout=subprocess.PIPE, text=True, env=around).stdout
    return float(told.split("first step at ")[1].split()[0]) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--recipe", default="erm")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    table = read_table(asked.data).slice(0, asked.rows + 2000)
    cut = min(1000, len(table) // 4)
    splits = {"test": table.slice(0, cut), "dev": table.slice(cut, cut), "train": table.slice(2 * cut)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, rows in splits.items():
            write(rows, folder / f"{name}.jsonl")
        files = [str(folder / "train.jsonl"), "--dev", str(folder / "dev.jsonl"), "--test", str(folder / "test.jsonl")]
        same = ["--model", asked.model, "--recipe", asked.recipe, "--epochs", str(asked.epochs), "--batch-size", "32"]
        AROUND["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        begin = partial(first_step, "train", *files, *same)
        begin("--out", str(folder / "before"), compiled=folder / "elsewhere")
        waits = [begin("--out", str(folder / f"wait-{n}"), compiled=folder / "compiled") for n in range(2)]
        print(f"{device_name()}: first step {waits[0]:.1f} and {waits[1]:.1f} s after starting", flush=True)
        found = {
            "device": device_name(),
            "processors": os.cpu_count(),
            "rows": len(splits["train"]),
            "epochs": asked.epochs,
            "recipe": asked.recipe,
            "first_step_seconds": waits,
        }
        if asked.seeds:
            found |= seeds(asked, folder, [*files, *same])
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def seeds(asked: argparse.Namespace, folder: Path, words: list[str]) -> dict[str, Any]:
    """Return the time of commands, one for each seed, and of a study of all of them."""
    runs = [command("train", *words, "--seed", str(n), "--out", str(folder / f"run-{n}")) for n in range(2)]
    print(f"calmix train: {runs[0]:.1f} and {runs[1]:.1f} s", flush=True)
    (folder / "study.toml").write_text(study(asked), encoding="utf-8")
    together = command("study", str(folder / "study.toml"), "--out", str(folder / "study"), "--data", str(folder))
    share = together / (asked.seeds * statistics.mean(runs))
    print(f"calmix study, {asked.seeds} seeds: {together:.1f} s, {share:.2f} of as many commands", flush=True)
    return {"train_seconds": runs, "seeds": asked.seeds, "study_seconds": together, "share_of_commands": share}


def write(rows: pa.Table, path: Path) -> None:
    """Write rows as JSON Lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())


def study(asked: argparse.Namespace) -> str:
    """Return the same runs as a study."""
    model = Path(asked.model).resolve() if Path(asked.model).exists() else asked.model
    files = "".join(f'{split} = "{split}.jsonl"\n' for split in ("train", "dev", "test"))
    return (
        f'tasks = ["these"]\nmodels = ["{model}"]\nseeds = {asked.seeds}\n'
        f"[training]\nepochs = {asked.epochs}\nbatch_size = 32\n"
        f'[task.these]\n{files}[[method]]\nrecipe = "{asked.recipe}"\n'
    )


if __name__ == "__main__":
    main()
