"""Prediction against transformers.pipeline at its best batch size, in one run, from texts to probabilities.

    python benchmarks/prediction.py --data texts.jsonl --model RUN --json out.json

Both predict the same texts with the same weights in float32, and take turns, so that whatever else the machine does
slows both alike. What counts is the processor time (the clock on a GPU); medians of several turns. A line of its own
is ours with `precision="bf16"`, which nobody gets without asking.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import processor
from transformers import pipeline

from calmix.data import read_examples
from calmix.data.corpus import corpus_path
from calmix.models import Classifier, load_for_training, resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(corpus_path("test")))
    parser.add_argument("--model", default="minilm", help="a pretrained encoder: the head's weights do not matter")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch-sizes", default="1,2,4,8,16,32,64")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    examples = read_examples(options.data)
    examples = examples.take(np.random.default_rng(0).permutation(len(examples))[: options.rows])
    network, tokenizer = load_for_training(resolve(options.model), label_names=examples.label_names)
    network.to(device).eval()
    classifier = Classifier(network, tokenizer, examples.label_names)
    lower = replace(classifier, precision="bf16")
    texts: list[Any] = examples.column("text")
    asked: list[Any] = texts
    if examples.kind == "pair":
        seconds = examples.column("text_b")
        asked = [{"text": a, "text_pair": b} for a, b in zip(texts, seconds, strict=True)]
        texts = list(zip(texts, seconds, strict=True))
    pipe = pipeline("text-classification", model=network, tokenizer=tokenizer, device=device)
    competitors: dict[str, Callable[[], Any]] = {
        "calmix": lambda: classifier.predict_proba(texts),
        "calmix, bf16": lambda: lower.predict_proba(texts),
    }
    for size in map(int, options.batch_sizes.split(",")):
        competitors[f"pipeline, batch {size}"] = lambda size=size: pipe(
            asked, batch_size=size, top_k=None, truncation=True
        )
    seconds_of: dict[str, list[float]] = {name: [] for name in competitors}
    now = time.perf_counter if device == "cuda" else time.process_time
    outputs: dict[str, Any] = {}
    for turn in range(options.turns + 1):
        for name, predict in competitors.items():
            began = now()
            outputs[name] = predict()
            if turn:  # the first is for warming up
                seconds_of[name].append(now() - began)
    ids = network.config.label2id
    reference = np.zeros((len(texts), len(ids)))
    for row, scores in enumerate(outputs[f"pipeline, batch {options.batch_sizes.split(',')[0]}"]):
        for score in scores:
            reference[row, ids[score["label"]]] = score["score"]
    medians = {name: statistics.median(values) for name, values in seconds_of.items()}
    best = min((name for name in medians if name.startswith("pipeline")), key=medians.__getitem__)
    told: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": options.threads,
        "torch": torch.__version__,
        "data": Path(options.data).parent.name + "/" + Path(options.data).name,
        "rows": len(texts),
        "best": best,
        "largest_difference": float(np.abs(outputs["calmix"] - reference).max()),
        "largest_difference_bf16": float(np.abs(outputs["calmix, bf16"] - reference).max()),
    }
    print(", ".join(f"{name} {value}" for name, value in told.items()))
    results = {
        name: {"texts_per_second": len(texts) / seconds, "against_best_pipeline": medians[best] / seconds}
        for name, seconds in medians.items()
    }
    for name, figures in results.items():
        print(f"{name:24} {figures['texts_per_second']:10,.1f} texts/s {figures['against_best_pipeline']:6.2f}× {best}")
    if options.json:
        Path(options.json).write_text(json.dumps({**told, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
