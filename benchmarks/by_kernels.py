"""Whether runs by kernels of our own come to the figures of runs by torch's, on one GPU.

    python benchmarks/by_kernels.py --data pairs.jsonl --model minilm --rows 20000 --seeds 5

Whole runs, the same seeds in both ways, taking turns. Dropout draws other numbers in each, so figures are not equal,
but they should be drawn from the same hat: beside the means stand the paired differences and their standard error.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from common import device_name

import calmix
from calmix.data import Examples, read_examples, split_examples
from calmix.data.corpus import corpus_path
from calmix.kernels import trying
from calmix.mixing import fused

FIGURES = ("accuracy", "nll", "ece")  # of the dev set after the last epoch, before anything is scaled
_outcome = trying._outcome


def allow(kernels: bool) -> None:
    """Have kernels be used from now on, or none."""
    trying._found.clear()
    fused._tried.clear()
    trying._outcome = _outcome if kernels else lambda *_: False


def run(learn: Examples, dev: Examples, out: Path, seed: int, asked: Any) -> dict[str, float]:
    same = {"model": asked.model, "recipe": asked.recipe, "epochs": asked.epochs, "batch_size": 32, "seed": seed}
    made = calmix.train(train=learn, dev=dev, out=out, **same)
    figures: dict[str, Any] = made.metrics["epochs"][-1]["dev"]
    return {name: float(figures[name]) for name in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--recipe", default="erm")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    examples = read_examples(asked.data)
    examples = examples.take(range(min(asked.rows + 4000, len(examples))))
    learn, dev = split_examples(examples, dev_fraction=min(0.2, 4000 / len(examples)), seed=0)
    print(f"{device_name()}, {len(learn)} samples, {len(dev)} of dev, {asked.recipe}", flush=True)
    found: dict[str, list[dict[str, float]]] = {"kernels": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.seeds):
            for way, runs in found.items():
                allow(way == "kernels")
                runs.append(run(learn, dev, Path(folder) / f"{way}-{seed}", seed, asked))
    for name in FIGURES:
        ours, theirs = ([one[name] for one in found[way]] for way in ("kernels", "torch"))
        apart = [a - b for a, b in zip(ours, theirs, strict=True)]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        means = f"{statistics.mean(ours):9.4f} by kernels, {statistics.mean(theirs):9.4f} by torch"
        print(f"{name:9} {means}, difference {statistics.mean(apart):+.4f} ± {error:.4f}", flush=True)
    if asked.json:
        about = {"device": device_name(), "rows": len(learn), "dev_rows": len(dev), "epochs": asked.epochs}
        kept = {**about, "recipe": asked.recipe, **found}
        asked.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
