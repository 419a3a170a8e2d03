"""Which ranking finds wrong labels best: data maps, cross-fitted heads, both together, and what people do today.

    python benchmarks/label_issues.py run --data FOLDER --jobs 8
    python benchmarks/label_issues.py table

FOLDER (or $CALMIX_DATA) holds `trec6/train.jsonl`, `ag_news/train.jsonl` and `noisy_ag_news/train.jsonl`, compressed or
not. In the first two a tenth or a fifth of the labels are flipped at random; the third has labels that people got
wrong, beside the true ones. What each way says of every label is kept in `--keep`, so that other combinations cost
nothing; what is there is not made again. The ways:

- map: the loss of each sample over plain training, as `calmix map` makes it; in three epochs with a fitted head
  (`map-fitted`) and a random one (`map-random`, as 0.1.0 did);
- head: 5-fold cross-fitted probabilities of a fitted head, on the mean of the frozen encoder's states;
- tfidf, frozen: 5-fold logistic regressions, as `rival_linear.py` makes them. Ranked by the probability of the given
  label, which is how cleanlab ranks by default.
"""

import argparse
import json
import lzma
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from label_noise import flipped
from label_scores import losses_and_margins
from numpy.typing import NDArray

HERE = Path(__file__).parent
TASKS = ("noisy_ag_news", "trec6-10", "trec6-20", "ag_news-10", "ag_news-20")
"""People's mistakes; and flips, with their share in percent."""
MAPS: dict[str, dict[str, Any]] = {
    "map": {},
    "map-random": {"head": "random", "epochs": 3, "lr": 5e-5, "batch_size": 32},
    "map-fitted": {"epochs": 3},
}
WAYS = (*MAPS, "head", "tfidf", "frozen")
FOLDS = 5
FIRST = 0.2
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """One way on one data set."""

    task: str
    way: str
    seed: int
    data: Path
    model: str
    keep: Path

    @property
    def file(self) -> Path:
        """Where what it says is kept."""
        return self.keep / f"{self.task}--{self.way}--{self.seed}.npz"


def noisy_examples(task: str, folder: Path, seed: int) -> tuple[Any, NDArray[np.bool_]]:
    """Return the rows with the labels that are to be judged, and which of these are wrong."""
    from calmix.data import read_examples
    from calmix.data.gathering import find_inside

    name, _, percent = task.partition("-")
    path = find_inside(folder, f"{name}/train")
    examples = read_examples(path)
    if not percent:
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        truth = [json.loads(line)["true_label"] for line in content.decode().splitlines()]
        given = np.array(examples.label_names, dtype=object)[examples.labels]
        return examples, np.asarray(given != np.array(truth, dtype=object))
    labels, wrong = flipped(examples.labels, int(percent) / 100, None, len(examples.label_names), seed)
    return replace(examples, labels=labels), wrong


def said(job: Job, examples: Any) -> Array:
    """Return how much a way doubts each label: a loss."""
    if job.way in MAPS:
        from calmix.training.surveying import survey

        with tempfile.TemporaryDirectory() as out:
            done = survey(examples, out=Path(out) / "map", model=job.model, seed=job.seed, **MAPS[job.way])
        return np.asarray(2 * done.dynamics.last_loss + done.dynamics.loss) / 3
    if job.way == "head":
        return head_loss(job, examples)
    import rival_linear
    from rival_worker import Rows

    from calmix.models import resolve

    rows = Rows(examples.column("text"), examples.labels)
    embeddings = None if job.way == "tfidf" else rival_linear.Embeddings(resolve(job.model), 256)
    ways: Any = rival_linear.tfidf if embeddings is None else lambda _: embeddings
    _, logits = rival_linear.chosen_by_folds(rows, ways, job.seed)
    return losses_and_margins(logits, examples.labels)[0]


def head_loss(job: Job, examples: Any) -> Array:
    """Return the cross-entropy of each row by a head that was fitted without it, to the mean of the states."""
    import torch

    from calmix.models import encode, fit_head_to, load_with_head, resolve
    from calmix.models.logistic_regression import stratified_folds

    loaded = load_with_head(resolve(job.model), label_names=examples.label_names, pooling="mean")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    packed = encode(examples, loaded.tokenizer, max_length=256)
    folds = stratified_folds(examples.labels, FOLDS, seed=job.seed)
    head = fit_head_to(loaded.model.to(device), packed, torch.from_numpy(examples.labels), folds=folds, set_inner=True)
    assert head.fold_logits is not None
    return losses_and_margins(head.fold_logits, examples.labels)[0]


def make(job: Job) -> str:
    """Make one run, and return a line that says so."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    examples, wrong = noisy_examples(job.task, job.data, job.seed)
    cpu, wall = time.process_time(), time.perf_counter()
    loss = said(job, examples)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    np.savez_compressed(job.file, loss=loss.astype(np.float32), wrong=wrong, cpu=spent[0], wall=spent[1])
    return f"{job.file.stem}: AP {average_precision(wrong, loss):.3f}, {spent[0]:.0f} s of processors"


def average_precision(wrong: NDArray[np.bool_], score: Array) -> float:
    """Return the mean precision at each wrong label."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(wrong, score))


def run(options: argparse.Namespace) -> None:
    """Make the runs that are not there yet."""
    if options.data is None:
        raise SystemExit("give --data, or set CALMIX_DATA")
    options.keep.mkdir(parents=True, exist_ok=True)
    chosen = product(range(options.seeds), options.tasks.split(","), options.ways.split(","))
    jobs = [Job(task, way, seed, options.data, options.model, options.keep) for seed, task, way in chosen]
    failed = 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(make, job) for job in jobs if not job.file.is_file()]):
            try:
                print(done.result(), flush=True)
            except Exception as error:  # the others go on
                failed += 1
                print(f"failed: {error!r}", flush=True)
    if failed:
        raise SystemExit(f"{failed} runs failed")


COMBINED = {
    f"{way} + {name}head": (way, weight) for way in MAPS for weight, name in ((0.5, "½ "), (1.0, ""), (2.0, "2 "))
}
"""A map's loss, and so many times the head's."""


def rankings(losses: dict[str, Array]) -> dict[str, Array]:
    """Return every ranking that can be made of what the ways said."""
    found = dict(losses)
    for name, (way, weight) in COMBINED.items():
        if way in losses and "head" in losses:
            found[name] = losses[way] + weight * losses["head"]
    return found


def figures(wrong: NDArray[np.bool_], score: Array) -> tuple[float, float, float]:
    """Return average precision, AUROC, and the share of the wrong labels among the first fifth."""
    from sklearn.metrics import roc_auc_score

    first = np.argsort(-score, kind="stable")[: int(FIRST * len(score))]
    return average_precision(wrong, score), float(roc_auc_score(wrong, score)), float(wrong[first].sum() / wrong.sum())


def table(options: argparse.Namespace) -> None:
    """Print what every ranking finds, by data set, and write it beside the runs."""
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for task, seed in product(TASKS, range(options.seeds)):
        files = {way: options.keep / f"{task}--{way}--{seed}.npz" for way in WAYS}
        kept = {way: np.load(file) for way, file in files.items() if file.is_file()}
        for name, score in rankings({way: arrays["loss"].astype(np.float64) for way, arrays in kept.items()}).items():
            wrong = next(iter(kept.values()))["wrong"]
            found.setdefault(name, {}).setdefault(task, []).append(figures(wrong, score))
    lines = ["| ranking | " + " | ".join(TASKS) + " | mean AP |", "|---" * (2 + len(TASKS)) + "|"]
    for name, by_task in found.items():
        means = {task: np.mean(values, axis=0) for task, values in by_task.items()}
        cells = [" · ".join(f"{100 * value:.1f}" for value in means[task]) if task in means else "–" for task in TASKS]
        whole = f"{100 * np.mean([means[task][0] for task in TASKS]):.1f}" if len(means) == len(TASKS) else "–"
        lines.append(f"| {name} | {' | '.join(cells)} | {whole} |")
    told = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    rows = {name: {task: np.mean(v, axis=0).round(4).tolist() for task, v in t.items()} for name, t in found.items()}
    (options.out / "label-issues.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    print(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="make runs")
    where = os.environ.get("CALMIX_DATA")
    running.add_argument("--data", type=Path, default=where and Path(where), help="default: $CALMIX_DATA")
    running.add_argument("--tasks", default=",".join(TASKS))
    running.add_argument("--ways", default=",".join(WAYS))
    running.add_argument("--model", default="minilm")
    running.add_argument("--jobs", type=int, default=1)
    running.set_defaults(act=run)
    tabling = commands.add_parser("table", help="compare the rankings of the runs that are there")
    tabling.add_argument("--out", type=Path, default=HERE.parent / "results" / "label-noise")
    tabling.set_defaults(act=table)
    for command in (running, tabling):
        command.add_argument("--seeds", type=int, default=3)
        command.add_argument("--keep", type=Path, default=HERE.parent / "predictions" / "label-issues")
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
