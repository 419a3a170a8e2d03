"""Finding flipped labels: our ranking from one run, against cross-validated probabilities and the final loss.

    python benchmarks/label_noise.py --data FOLDER --workers 8 --batch-size 128 --lr 2e-4 --out results/label-noise

FOLDER (or $CALMIX_DATA) holds `trec6/train.jsonl` and `ag_news/train.jsonl`, compressed or not. Labels are flipped at
random, or each to the class it is most easily taken for (the rival most voted for in a run on the clean data). Each
result is printed and written as it comes; then average precision and AUROC of each ranking, mean and standard
deviation over seeds. cleanlab's own `find_label_issues` is measured too where cleanlab is installed. With `--folds 0`
nothing is cross-validated, and figures of other rankings that are in `runs.json` already stay there.
"""

import argparse
import itertools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEYS = ("task", "noise", "rate", "method", "seed")


@dataclass(frozen=True)
class Setting:
    """How a model is trained."""

    model: str = "minilm"
    epochs: int = 3
    batch_size: int = 32
    lr: float = 5e-5
    max_length: int = 128


@dataclass(frozen=True, eq=False)
class Trained:
    """What a plain run came to."""

    dynamics: Any
    network: Any
    tokenizer: Any
    seconds: float
    logits: Any = None
    """Of each epoch [epochs, samples, classes], where they were kept."""

    def predict(self, examples: Any, setting: Setting) -> NDArray[np.float32]:
        from calmix.models import encode, predict_logits, usable_length

        limit = usable_length(self.tokenizer, self.network.config, setting.max_length)
        return predict_logits(self.network, encode(examples, self.tokenizer, max_length=limit))


def trained(examples: Any, setting: Setting, seed: int, *, keep_logits: bool = False) -> Trained:
    """Return a plain run, as `calmix map` makes it, its last look not included."""
    import torch

    from calmix.dynamics import Recorder
    from calmix.mixing import choose, fill_tokens
    from calmix.models import encode, load_for_training, resolve, usable_length
    from calmix.training.batches import training_set
    from calmix.training.guiding import Guidance
    from calmix.training.launching import accelerator_for, precision_for
    from calmix.training.loop import fit

    torch.manual_seed(seed)
    accelerator = accelerator_for(precision_for("auto"), (), Path())
    network, tokenizer = load_for_training(resolve(setting.model), label_names=examples.label_names)
    packed = encode(examples, tokenizer, max_length=usable_length(tokenizer, network.config, setting.max_length))
    began = time.perf_counter()
    data = training_set(examples, packed).to(accelerator.device)
    recipe = choose("erm")
    guidance = Guidance(recipe, network, data, accelerator)
    if keep_logits:
        guidance.recorder = Recorder(len(examples), device=accelerator.device, keep_logits=True)
    fit(
        network,
        data,
        recipe,
        guidance,
        accelerator=accelerator,
        fill=fill_tokens(tokenizer),
        dev=None,
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        lr=setting.lr,
        weight_decay=0.0,
        warmup=0.1,
        schedule="linear",
        clip=1.0,
        accumulate=1,
        select="none",
        patience=0,
        seed=seed,
    )
    dynamics = guidance.dynamics(ids=examples.ids, label_names=examples.label_names)
    kept = guidance.recorder.logits().numpy() if keep_logits else None
    return Trained(dynamics, network, tokenizer, time.perf_counter() - began, kept)


def similar_classes(examples: Any, setting: Setting, seed: int) -> list[int]:
    """Return, for each class, the one that its samples are most easily taken for by a model of the clean data."""
    rival = trained(examples, setting, seed).dynamics.rival
    classes = len(examples.label_names)
    return [int(np.bincount(rival[examples.labels == k], minlength=classes).argmax()) for k in range(classes)]


def flipped(
    labels: NDArray[np.int64], rate: float, similar: list[int] | None, classes: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the labels with a share of them flipped, and which."""
    rng = np.random.default_rng([seed, 7])
    wrong = rng.random(len(labels)) < rate
    other = (labels + rng.integers(1, classes, len(labels))) % classes if similar is None else np.array(similar)[labels]
    return np.where(wrong, other, labels), wrong


def of_labels(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability of each row's label."""
    from calmix.calibration import Temperature

    return np.asarray(Temperature(1.0)(logits))[np.arange(len(labels)), labels]


def scored(name: str, score: NDArray[np.float64], wrong: NDArray[np.bool_], seconds: float) -> dict[str, Any]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    return {
        "method": name,
        "ap": float(average_precision_score(wrong, score)),
        "auroc": float(roc_auc_score(wrong, score)),
        "seconds": seconds,
    }


def cleanlab_score(labels: NDArray[np.int64], probs: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return a score that ranks as `find_label_issues` does: what it flags first, in its order; the rest by 1 − p."""
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        return None
    ranked = find_label_issues(labels, probs, return_indices_ranked_by="self_confidence", n_jobs=1)
    score = 1 - probs[np.arange(len(labels)), labels]
    score[ranked] = 2 + np.arange(len(ranked), 0, -1) / len(ranked)
    return score


def one_run(noisy: Any, truth: NDArray[np.int64], wrong: NDArray[np.bool_], setting: Setting, seed: int) -> list[Any]:
    """Return the figures of the rankings that take one training run."""
    from calmix.dynamics import label_issues

    run = trained(noisy, setting, seed)
    began = time.perf_counter()
    logits = run.predict(noisy, setting)
    look = time.perf_counter() - began
    issues = label_issues(run.dynamics.with_last_look(logits))
    ours = scored("calmix, one run", issues.score, wrong, run.seconds + look)
    ours["flag_precision"] = float(wrong[issues.flagged].mean()) if issues.flagged.any() else 0.0
    ours["flag_recall"] = float(issues.flagged[wrong].mean())
    ours["suggested_right"] = float((issues.suggested[wrong] == truth[wrong]).mean())
    final, before = 1 - of_labels(logits, noisy.labels), label_issues(run.dynamics).score
    return [
        ours,
        scored("calmix, without the last look", before, wrong, run.seconds),
        scored("final loss, one run", final, wrong, run.seconds + look),
    ]


def folded(noisy: Any, wrong: NDArray[np.bool_], setting: Setting, seed: int, folds: int) -> list[Any]:
    """Return the figures of the rankings by cross-validated probabilities."""
    from calmix.calibration import Temperature

    probs, spent = np.zeros((len(noisy), len(noisy.label_names))), 0.0
    fold = np.random.default_rng([seed, 11]).permutation(len(noisy)) % folds
    for k in range(folds):
        run = trained(noisy.take(np.flatnonzero(fold != k)), setting, seed)
        began = time.perf_counter()
        probs[fold == k] = np.asarray(Temperature(1.0)(run.predict(noisy.take(np.flatnonzero(fold == k)), setting)))
        spent += run.seconds + time.perf_counter() - began
    own = 1 - probs[np.arange(len(noisy)), noisy.labels]
    found = [scored(f"self-confidence, {folds} folds", own, wrong, spent)]
    ranked = cleanlab_score(noisy.labels, probs)
    if ranked is not None:
        found.append(scored(f"cleanlab find_label_issues, {folds} folds", ranked, wrong, spent))
    return found


def one(job: tuple[str, Path, str, int, list[float], Setting, int]) -> list[dict[str, Any]]:
    """Return the figures of every ranking for one data set, kind of noise and seed."""
    import torch

    from calmix.data import read_examples

    task, path, kind, seed, rates, setting, folds = job
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    examples = read_examples(path)
    similar = similar_classes(examples, setting, seed) if kind == "similar" else None
    found = []
    for rate in rates:
        labels, wrong = flipped(examples.labels, rate, similar, len(examples.label_names), seed)
        noisy = replace(examples, labels=labels)
        rows = one_run(noisy, examples.labels, wrong, setting, seed)
        rows += folded(noisy, wrong, setting, seed, folds) if folds else []
        found += [{"task": task, "rate": rate, "noise": kind, "seed": seed, "flips": similar, **row} for row in rows]
    return found


def told(row: dict[str, Any]) -> str:
    return f"{row['task']:8} {row['noise']:8} {row['rate']:4.0%} {row['seed']}  {row['method']:38} " + (
        f"AP {row['ap']:.3f}  AUROC {row['auroc']:.3f}  {row['seconds']:6.1f} s"
    )


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| task | noise | rate | ranking | AP | AUROC | seconds |", "|---|---|---|---|---|---|---|"]
    for key in sorted({tuple(r[k] for k in KEYS[:4]) for r in rows}):
        same = [r for r in rows if tuple(r[k] for k in KEYS[:4]) == key]
        cells = []
        for name in ("ap", "auroc"):
            values = [r[name] for r in same]
            cells.append(f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}")
        cells.append(f"{np.mean([r['seconds'] for r in same]):.1f}")
        lines.append("| " + " | ".join([*map(str, key[:2]), f"{key[2]:.0%}", key[3], *cells]) + " |")
    lines += ["", "| ranking, mean over all | AP | AUROC | seconds |", "|---|---|---|---|"]
    for method in sorted({r["method"] for r in rows}):
        means = [np.mean([r[name] for r in rows if r["method"] == method]) for name in ("ap", "auroc", "seconds")]
        lines.append(f"| {method} | {means[0]:.3f} | {means[1]:.3f} | {means[2]:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("CALMIX_DATA"), help="default: $CALMIX_DATA")
    parser.add_argument("--tasks", default="trec6,ag_news")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rates", default="0.1,0.2")
    parser.add_argument("--noise", default="random,similar")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data, or set CALMIX_DATA")

    from calmix.data.gathering import find_inside

    setting = Setting(options.model, options.epochs, options.batch_size, options.lr)
    rates = [float(rate) for rate in options.rates.split(",")]
    jobs = [
        (task, find_inside(options.data, f"{task}/train"), kind, seed, rates, setting, options.folds)
        for seed, task, kind in itertools.product(
            range(options.seeds), options.tasks.split(","), options.noise.split(",")
        )
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "runs.json"
    known = {tuple(r[k] for k in KEYS): r for r in json.loads(file.read_text())} if file.is_file() else {}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            for row in done.result():
                known[tuple(row[k] for k in KEYS)] = row
                print(told(row), flush=True)
            file.write_text(json.dumps([known[key] for key in sorted(known)], indent=1))
    print(table(list(known.values())))


if __name__ == "__main__":
    main()
