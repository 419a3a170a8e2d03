"""Which score finds flipped labels best: many candidates on the same runs, to choose one by. Not on TREC or AG News.

    python benchmarks/label_scores.py --data FOLDER --keep logits --json scores.json

FOLDER (or $CALMIX_DATA) holds `snli/train.jsonl` and the like. The logits of every epoch and of a pass after training
are kept in `--keep`, a file per run, so that another candidate costs nothing; runs that are there are not made again.
"""

import argparse
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from label_noise import Setting, flipped, similar_classes, trained
from numpy.typing import NDArray

ROWS = {"snli": 2000, "sst2": 3000, "mr": 1500, "cola": 3000, "goemotions": 2000, "desk": 1200}
SETTINGS = {
    "default": Setting(max_length=96),
    "hot": Setting(max_length=96, lr=2e-4),
    "long": Setting(max_length=96, lr=1e-4, epochs=8),
}
Array = NDArray[np.float64]
# Losses and margins of each epoch [epochs, samples], the final loss and margin [samples] → how suspicious each is.
Score = Callable[[Array, Array, Array, Array], Array]


def late(values: Array, keep: float) -> Array:
    """Return the mean over epochs in which each epoch counts `keep` of the one after it."""
    weights = keep ** np.arange(len(values) - 1, -1, -1)
    return np.average(values, axis=0, weights=weights)


CANDIDATES: dict[str, Score] = {
    "mean loss": lambda loss, *_: loss.mean(0),
    "mean loss, first epoch at half": lambda loss, *_: np.average(loss, axis=0, weights=[0.5] + [1] * (len(loss) - 1)),
    "AUM": lambda _, margin, *__: -margin.mean(0),
    "confidence": lambda loss, *_: -np.exp(-loss).mean(0),
    "loss, each epoch half of the next": lambda loss, *_: late(loss, 0.5),
    "loss, each epoch a quarter of the next": lambda loss, *_: late(loss, 0.25),
    "margin, each epoch half of the next": lambda _, margin, *__: -late(margin, 0.5),
    "confidence, each epoch half of the next": lambda loss, *_: -late(np.exp(-loss), 0.5),
    "last loss": lambda loss, *_: loss[-1],
    "last loss + mean / 2": lambda loss, *_: loss[-1] + loss.mean(0) / 2,
    "last loss + mean": lambda loss, *_: loss[-1] + loss.mean(0),
    "final loss": lambda _, __, final, ___: final,
    "final margin": lambda *values: -values[3],
    "final loss + mean / 4": lambda loss, _, final, __: final + loss.mean(0) / 4,
    "final loss + mean / 2": lambda loss, _, final, __: final + loss.mean(0) / 2,
    "final loss + mean": lambda loss, _, final, __: final + loss.mean(0),
    "final loss + 2 mean": lambda loss, _, final, __: final + 2 * loss.mean(0),
    "final margin + AUM / 2": lambda _, margin, __, final: -final - margin.mean(0) / 2,
    "final margin + AUM": lambda _, margin, __, final: -final - margin.mean(0),
    "final loss + late loss": lambda loss, _, final, __: final + late(loss, 0.5),
}


def read(task: str, folder: Path) -> Any:
    """Return a subset of a task's training data; GoEmotions with its Ekman classes."""
    from calmix.data import Examples, read_examples
    from calmix.data.corpus import corpus_path
    from calmix.data.gathering import find_inside

    if task == "desk":
        return read_examples(corpus_path("train"))
    whole = read_examples(find_inside(folder, f"{task}/train"))
    names, mapping = np.array(whole.label_names, dtype=object)[whole.labels], folder / task / "ekman_mapping.json"
    if mapping.is_file():
        coarse = {fine: name for name, fines in json.loads(mapping.read_text()).items() for fine in fines}
        names = np.array([coarse.get(name, name) for name in names], dtype=object)
    rows = np.random.default_rng(0).permutation(len(whole))[: ROWS[task]]
    texts, seconds = whole.column("text"), whole.column("text_b") if whole.kind == "pair" else None
    return Examples.from_texts(
        [texts[row] for row in rows],
        names[rows].tolist(),
        text_b=None if seconds is None else [seconds[row] for row in rows],
    )


def logits_of(task: str, way: str, kind: str, rate: float, seed: int, folder: Path, keep: Path) -> Path:
    """Return the file with the logits of one run, made unless it is there."""
    file = keep / f"{task}-{way}-{kind}-{rate}-{seed}.npz"
    if file.is_file():
        return file
    examples, similar = read(task, folder), None
    if kind == "similar":
        known = keep / f"{task}-similar.json"
        if not known.is_file():
            known.write_text(json.dumps(similar_classes(examples, SETTINGS["default"], seed)))
        similar = json.loads(known.read_text())
    given, wrong = flipped(examples.labels, rate, similar, len(examples.label_names), seed)
    noisy = replace(examples, labels=given)
    run = trained(noisy, SETTINGS[way], seed, keep_logits=True)
    final = run.predict(noisy, SETTINGS[way])
    np.savez(file, train=run.logits, final=final, given=given, truth=examples.labels, wrong=wrong)
    print(f"{file.stem}: {run.seconds:.0f} s", flush=True)
    return file


def losses_and_margins(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return both for each sample: of logits [..., samples, classes]."""
    scores, rows = logits.astype(np.float64), np.arange(len(labels))
    top = scores.max(-1, keepdims=True)
    gold = scores[..., rows, labels]
    loss = np.log(np.exp(scores - top).sum(-1)) + top[..., 0] - gold
    others = scores.copy()
    others[..., rows, labels] = -np.inf
    return loss, gold - others.max(-1)


def main() -> None:
    from sklearn.metrics import average_precision_score

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("CALMIX_DATA"), help="default: $CALMIX_DATA")
    parser.add_argument("--tasks", default=",".join(ROWS))
    parser.add_argument("--ways", default="default,hot,long")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--found", action="store_true", help="compare the runs that are in --keep, and make none")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.found:
        files = sorted(options.keep.glob("*.npz"))
    elif options.data is None:
        parser.error("give --data, or set CALMIX_DATA")
    else:
        files = [
            logits_of(task, way, kind, rate, seed, options.data, options.keep)
            for seed, way, task in itertools.product(
                range(options.seeds), options.ways.split(","), options.tasks.split(",")
            )
            for kind in (("random", "similar") if task in ("snli", "goemotions", "desk") else ("random",))
            for rate in (0.1, 0.2)
        ]
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for file in files:
        run = np.load(file)
        loss, margin = losses_and_margins(run["train"], run["given"])
        final_loss, final_margin = losses_and_margins(run["final"], run["given"])
        for name, score in CANDIDATES.items():
            value = average_precision_score(run["wrong"], score(loss, margin, final_loss, final_margin))
            found[name][file.stem] = float(value)
    groups: dict[str, list[str]] = defaultdict(list)
    for file in files:
        _, way, kind, *_ = file.stem.split("-")
        groups[f"{way}, {kind}"].append(file.stem)
    print(f"average precision, {len(files)} runs")
    print("| score | all | " + " | ".join(f"{name} ({len(runs)})" for name, runs in sorted(groups.items())) + " |")
    print("|---" * (2 + len(groups)) + "|")
    for name, runs in sorted(found.items(), key=lambda item: -np.mean(list(item[1].values()))):
        cells = [
            np.mean(list(runs.values())),
            *(np.mean([runs[r] for r in group]) for _, group in sorted(groups.items())),
        ]
        print(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
