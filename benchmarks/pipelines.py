"""Whole trainings, side by side in one run: plain, guided online, guided by a run before, several seeds at once.

    python benchmarks/pipelines.py --data pairs.jsonl --model minilm --rows 30000

Each line is the wall time of `calmix.train` from files in memory to a finished run folder, and its ratio to plain
training; of several seeds, the training samples per second of all of them against one seed at a time.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import calmix
from calmix.data import Examples, read_examples, split_examples
from calmix.data.corpus import corpus_path
from calmix.training.together import train_together

REPEATS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", default="5,10")
    parser.add_argument("--json")
    options = parser.parse_args()
    examples = read_examples(options.data)
    examples = examples.take(range(min(options.rows + 1000, len(examples))))
    learn, dev = split_examples(examples, dev_fraction=min(0.1, 1000 / len(examples)), seed=0)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}, {len(learn)} samples, {options.epochs} epochs", flush=True)
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "rows": len(learn), "epochs": options.epochs}
    with tempfile.TemporaryDirectory() as folder:
        measure(learn, dev, Path(folder), options, found)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2), encoding="utf-8")


def measure(learn: Examples, dev: Examples, folder: Path, options: Any, found: dict[str, Any]) -> None:
    number = 0

    def asked(**more: Any) -> dict[str, Any]:
        nonlocal number
        number += 1
        same = {"train": learn, "dev": dev, "model": options.model, "epochs": options.epochs}
        return {**same, "out": folder / str(number), "batch_size": 32, **more}

    def timed(make: Callable[[], Any]) -> tuple[float, Any]:
        began = time.perf_counter()
        made = make()
        return time.perf_counter() - began, made

    calmix.train(**asked(epochs=1))  # everything is warm after it
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "aum-saliency, online": {"recipe": "aum-saliency", "online": True},
        "tdmixup, online": {"recipe": "tdmixup", "online": True},
        "informed-mixup, online": {"recipe": "informed-mixup", "online": True},
        "aum-saliency, online, whole set": {
            "recipe": "aum-saliency",
            "online": True,
            "options": {"search": "set"},
        },
        "aum-saliency, two runs": {"recipe": "aum-saliency"},
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(REPEATS):
        for name, more in kinds.items():
            wall, run = timed(lambda more=more: calmix.train(**asked(**more)))
            seconds[name].append(wall)
            found.setdefault("loops", {}).setdefault(name, []).append(run.metrics["seconds"])
    base = statistics.median(seconds["plain"])
    for name, walls in seconds.items():
        wall = statistics.median(walls)
        found[name] = {"seconds": wall, "ratio": wall / base}
        loop = statistics.median(found["loops"][name])
        plain_loop = statistics.median(found["loops"]["plain"])
        print(
            f"{name:34} {wall:7.2f} s  {wall / base:5.2f}× plain   its loop alone {loop / plain_loop:5.2f}×", flush=True
        )
    alone = len(learn) * options.epochs / statistics.median(found["loops"]["plain"])
    for count in map(int, options.seeds.split(",")):
        wall, runs = timed(lambda n=count: train_together([asked(seed=seed) for seed in range(n)]))
        failed = [run for run in runs if isinstance(run, Exception)]
        if failed:
            raise failed[0]
        rate = len(learn) * options.epochs / statistics.median(run.metrics["seconds"] for run in runs)
        found[f"{count} seeds together"] = {
            "seconds": wall,
            "share_of_separate_runs": wall / (count * base),
            "samples_per_second": rate,
            "gain": rate / alone,
        }
        print(
            f"{f'{count} seeds together':34} {wall:7.2f} s  {wall / (count * base):5.2f} of as many runs   "
            f"{rate:,.0f} samples/s, {rate / alone:.2f}× one at a time",
            flush=True,
        )


if __name__ == "__main__":
    main()
