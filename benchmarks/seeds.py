"""Several seeds trained in the same steps against one seed at a time, in one run on the same data.

    python benchmarks/seeds.py --data pairs.jsonl --model minilm --rows 20000 --seeds 5,10

Times are those of whole runs, from data in memory to finished folders, and of their loops alone (dev figures and the
capture of graphs included).
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import calmix
from calmix.data import Examples, read_examples, split_examples
from calmix.data.corpus import corpus_path
from calmix.training.together import train_together

REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--recipe", default="erm")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", default="5,10")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    examples = read_examples(options.data)
    examples = examples.take(range(min(options.rows + 1000, len(examples))))
    learn, dev = split_examples(examples, dev_fraction=min(0.1, 1000 / len(examples)), seed=0)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}, {len(learn)} samples, {options.epochs} epochs", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(learn, dev, Path(folder), options)
    if options.json:
        about = {"device": device, "torch": torch.__version__, "rows": len(learn), "epochs": options.epochs}
        options.json.write_text(json.dumps(about | found, indent=2), encoding="utf-8")


def measure(learn: Examples, dev: Examples, folder: Path, options: Any) -> dict[str, Any]:
    samples = len(learn) * options.epochs

    def asked(name: str, seed: int, **more: Any) -> dict[str, Any]:
        same = {"train": learn, "dev": dev, "model": options.model, "recipe": options.recipe, "seed": seed}
        return {**same, "epochs": options.epochs, "batch_size": 32, "out": folder / f"{name}-{seed}", **more}

    calmix.train(**asked("warm", 0, epochs=1))
    walls, loops = [], []
    for seed in range(REPEATS):
        began = time.perf_counter()
        run = calmix.train(**asked("alone", seed))
        walls.append(time.perf_counter() - began)
        loops.append(run.metrics["seconds"])
    wall, loop = statistics.median(walls), statistics.median(loops)
    print(f"one at a time: {wall:.2f} s a run, {samples / loop:,.0f} samples/s in its loop", flush=True)
    found: dict[str, Any] = {"alone": {"seconds": wall, "samples_per_second": samples / loop}}
    for count in map(int, options.seeds.split(",")):
        began = time.perf_counter()
        runs = train_together([asked(f"beside-{count}", seed) for seed in range(count)])
        taken = time.perf_counter() - began
        for made in runs:
            if isinstance(made, Exception):
                raise made
        rate = samples / statistics.median(made.metrics["seconds"] for made in runs)  # type: ignore[union-attr]
        found[str(count)] = {
            "seconds": taken,
            "share_of_separate_runs": taken / (count * wall),
            "samples_per_second": rate,
            "gain": rate * loop / samples,
        }
        print(
            f"{count} together: {taken:.2f} s, {taken / (count * wall):.2f} of as many runs; {rate:,.0f} samples/s in "
            f"their loop, {rate * loop / samples:.2f}× one at a time",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
