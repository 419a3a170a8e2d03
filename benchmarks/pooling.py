"""What a classifier reads of a text: the mean by a layer of its own, or the first token made to imitate it.

    python benchmarks/pooling.py --data FOLDER --tasks trec6:8,clinc150:8 --seeds 0,1

FOLDER holds `trec6/train.jsonl.xz` and the like. A task is named with its rows a class. All networks train on the same
rows in the same steps; 300 rows of dev (of train, where there is no dev) give the temperature and choose no epoch.
A line of `results/pooling/runs.jsonl` for each run; what is there is not made again.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import calmix
from calmix.data import Examples, read_examples

WAYS = ("imitation", "layer", "random head")
OUT = Path(__file__).parents[1] / "results" / "pooling" / "runs.jsonl"


def some(examples: Examples, count: int, *, seed: int) -> Examples:
    """Return so many rows."""
    rows = np.random.default_rng(seed).permutation(len(examples))[:count]
    return examples.take(np.sort(rows))


def of_each_class(examples: Examples, count: int, *, seed: int) -> tuple[Examples, Examples]:
    """Return so many rows of each class, and the others."""
    rng, labels = np.random.default_rng(seed), examples.labels
    rows = np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:count] for k in np.unique(labels)])
    return examples.take(np.sort(rows)), examples.take(np.setdiff1d(np.arange(len(labels)), rows))


def run(folder: Path, way: str, per_class: int, *, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one run."""
    whole = read_examples(next(folder.glob("train.jsonl*")))
    train, others = of_each_class(whole, per_class, seed=seed)
    held = next(folder.glob("dev.jsonl*"), None)
    dev = some(others if held is None else read_examples(held, label_names=whole.label_names), 300, seed=5)
    test = some(read_examples(next(folder.glob("test.jsonl*")), label_names=whole.label_names), 1500, seed=9)
    began = time.process_time()
    asked = {**settings, **({"head": "random"} if way == "random head" else {})}
    with (
        tempfile.TemporaryDirectory() as out,
        patch("calmix.models.loading.add_mean_pooling", (lambda model: False) if way == "imitation" else _as_it_is()),
    ):
        found = calmix.train(
            train,
            dev=dev,
            test=test,
            seed=seed,
            select="none",
            max_length=128,
            lean=True,
            out=Path(out) / "run",
            on_note=lambda _: None,
            **asked,
        ).metrics
    after, epochs = found["splits"]["test"]["after"], found["epochs"]
    return {
        **{name: round(after[name], 4) for name in ("accuracy", "nll", "ece")},
        "nll_before": round(found["splits"]["test"]["before"]["nll"], 4),
        "temperature": round(found["temperature"], 3),
        "dev_nll": [round(entry["dev"]["nll-ts"], 4) for entry in epochs],
        "processor_seconds": round(time.process_time() - began),
    }


def _as_it_is() -> Any:
    from calmix.models.mean_pooling import add_mean_pooling

    return add_mean_pooling


def main() -> None:
    """Make the runs that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", default="trec6:8,clinc150:8")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--set", default="{}", help="settings of calmix.train, as JSON")
    args = parser.parse_args()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = OUT.read_text(encoding="utf-8").splitlines() if OUT.is_file() else []
    there = {json.dumps(json.loads(line)["run"], sort_keys=True) for line in lines}
    for seed in args.seeds.split(","):
        for task in args.tasks.split(","):
            for way in args.ways.split(","):
                name, per_class = task.split(":")
                settings = json.loads(args.set)
                about = {"task": name, "rows_of_a_class": int(per_class), "way": way, "seed": int(seed), **settings}
                if json.dumps(about, sort_keys=True) in there:
                    continue
                figures = run(args.data / name, way, int(per_class), seed=int(seed), settings=settings)
                with OUT.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"run": about, **figures}) + "\n")
                print(about, figures, flush=True)


if __name__ == "__main__":
    main()
