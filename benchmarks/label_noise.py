"""Finding flipped labels: our ranking from one run, against cross-validated probabilities and the final loss.

    python benchmarks/label_noise.py --data trec6=train.jsonl --data ag_news=train.jsonl --out results/label-noise

Labels are flipped at random, or each to the class it is most easily taken for (the rival most voted for in a run on
the clean data). Prints average precision and AUROC of each ranking; mean and standard deviation over seeds.
cleanlab's own `find_label_issues` is measured too where cleanlab is installed.
"""

import argparse
import itertools
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPOCHS, FOLDS = 3, 5


def record(examples: Any, model: str, seed: int, batch_size: int, lr: float) -> tuple[Any, Any, float]:
    """Return the dynamics of plain training, the trained network with its tokenizer, and the seconds it took."""
    import torch

    from calmix.mixing import choose, fill_tokens
    from calmix.models import encode, load_for_training, resolve
    from calmix.training.batches import training_set
    from calmix.training.guiding import Guidance
    from calmix.training.launching import accelerator_for, precision_for
    from calmix.training.loop import fit

    torch.manual_seed(seed)
    accelerator = accelerator_for(precision_for("auto"), (), Path())
    network, tokenizer = load_for_training(resolve(model), label_names=examples.label_names)
    packed = encode(examples, tokenizer, max_length=128)
    began = time.perf_counter()
    data = training_set(examples, packed).to(accelerator.device)
    recipe = choose("erm")
    guidance = Guidance(recipe, network, data, accelerator)
    fit(
        network,
        data,
        recipe,
        guidance,
        accelerator=accelerator,
        fill=fill_tokens(tokenizer),
        dev=None,
        epochs=EPOCHS,
        batch_size=batch_size,
        lr=lr,
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
    return dynamics, (network, tokenizer), time.perf_counter() - began


def probabilities(trained: Any, examples: Any) -> NDArray[np.float64]:
    from calmix.calibration import Temperature
    from calmix.models import encode, predict_logits

    network, tokenizer = trained
    return np.asarray(Temperature(1.0)(predict_logits(network, encode(examples, tokenizer, max_length=128))))


def flipped(labels: NDArray[np.int64], rate: float, similar: NDArray[np.int64] | None, classes: int, seed: int) -> Any:
    rng = np.random.default_rng([seed, 7])
    wrong = rng.random(len(labels)) < rate
    other = (labels + rng.integers(1, classes, len(labels))) % classes if similar is None else similar[labels]
    return np.where(wrong, other, labels), wrong


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


def one(job: tuple[str, str, str, float, str, int, int, float]) -> list[dict[str, Any]]:
    """Return the figures of every ranking for one data set, rate, kind of noise and seed."""
    import torch

    from calmix.data import read_examples
    from calmix.dynamics import label_issues

    task, path, model, rate, kind, seed, *settings = job
    torch.set_num_threads(2)
    examples = read_examples(path)
    classes = len(examples.label_names)
    similar = None
    if kind == "similar":
        clean, _, _ = record(examples, model, seed, *settings)
        similar = np.array([np.bincount(clean.rival[examples.labels == k]).argmax() for k in range(classes)])
    labels, wrong = flipped(examples.labels, rate, similar, classes, seed)
    noisy = replace(examples, labels=labels)
    rows = np.arange(len(labels))

    dynamics, trained, seconds = record(noisy, model, seed, *settings)
    issues = label_issues(dynamics)
    found = [scored("calmix, one run", issues.score, wrong, seconds)]
    found[0]["flag_precision"] = float(wrong[issues.flagged].mean())
    found[0]["flag_recall"] = float(issues.flagged[wrong].mean())
    found[0]["suggested_right"] = float((issues.suggested[wrong] == examples.labels[wrong]).mean())
    final = 1 - probabilities(trained, noisy)[rows, labels]
    found.append(scored("final loss, one run", final, wrong, seconds))

    probs, spent = np.zeros((len(labels), classes)), 0.0
    fold = np.random.default_rng([seed, 11]).permutation(len(labels)) % FOLDS
    for k in range(FOLDS):
        _, trained, seconds = record(noisy.take(np.flatnonzero(fold != k)), model, seed, *settings)
        probs[fold == k] = probabilities(trained, noisy.take(np.flatnonzero(fold == k)))
        spent += seconds
    found.append(scored(f"self-confidence, {FOLDS} folds", 1 - probs[rows, labels], wrong, spent))
    ranked = cleanlab_score(labels, probs)
    if ranked is not None:
        found.append(scored(f"cleanlab find_label_issues, {FOLDS} folds", ranked, wrong, spent))
    return [{"task": task, "rate": rate, "noise": kind, "seed": seed, **f} for f in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rates", default="0.1,0.2")
    parser.add_argument("--noise", default="random,similar")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sources = [word.split("=", 1) for word in options.data]
    jobs = [
        (task, path, options.model, float(rate), kind, seed, options.batch_size, options.lr)
        for (task, path), rate, kind, seed in itertools.product(
            sources, options.rates.split(","), options.noise.split(","), range(options.seeds)
        )
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            found = done.result()
            rows += found
            (options.out / "runs.json").write_text(json.dumps(rows, indent=1))
            print(found[0]["task"], found[0]["noise"], found[0]["rate"], found[0]["seed"], flush=True)
    print("| task | noise | rate | ranking | AP | AUROC | seconds |\n|---|---|---|---|---|---|---|")
    keys = sorted({(r["task"], r["noise"], r["rate"], r["method"]) for r in rows})
    for key in keys:
        same = [r for r in rows if (r["task"], r["noise"], r["rate"], r["method"]) == key]
        cells = []
        for name in ("ap", "auroc"):
            values = [r[name] for r in same]
            cells.append(f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}")
        print(
            "| "
            + " | ".join(map(str, [*key[:2], f"{key[2]:.0%}", key[3], *cells]))
            + f" | {np.mean([r['seconds'] for r in same]):.1f} |"
        )


if __name__ == "__main__":
    main()
