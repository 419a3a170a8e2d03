"""How time and memory grow with samples, sequence length, classes and epochs; the exponent of each growth.

    python benchmarks/growth.py --json out.json        (--largest 100000 for a quick look)

Time is the processor's (one thread), memory the most that a fresh process grew by. The exponent is the slope of a
straight line through the logarithms of the larger half of the sizes: 1 is linear, 0 does not grow, 2 would be
quadratic. Texts are synthetic: words of a fixed vocabulary, lengths as of short messages.
"""

import argparse
import csv
import json
import multiprocessing as mp
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from accelerate import Accelerator
from common import RATE, our_step, processor

from calmix.data import Examples, read_examples
from calmix.dynamics import Recorder
from calmix.metrics import BinCounts
from calmix.models import encode, load_for_training, resolve
from calmix.models.predicting import predict_logits
from calmix.training import prediction_tables
from calmix.training.batches import epoch_steps

WORDS = [a + b for a in ("re", "un", "pre", "mis", "over") for b in ("turn", "pay", "book", "call", "place", "order")]
Figures = dict[str, float]


def texts(rows: int, words: int = 12) -> list[str]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(max(1, words // 2), words + words // 2 + 1, rows)
    drawn = np.array(WORDS)[rng.integers(0, len(WORDS), int(lengths.sum()))].tolist()
    ends = np.cumsum(lengths)
    return [" ".join(drawn[end - n : end]) for end, n in zip(ends, lengths, strict=True)]


def timed(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def reading(rows: int) -> Figures:
    """A CSV file read and tokenised, against the tokenizer alone on texts that are already there."""
    _, tokenizer = load_for_training(resolve("minilm"), label_names=("a", "b"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.csv"
        with file.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", "label"])
            writer.writerows((text, "ab"[i % 2]) for i, text in enumerate(texts(rows)))
        size = file.stat().st_size
        tokenizer(["warm up"])
        held: dict[str, Any] = {}
        before = resident()

        def read() -> None:
            held["examples"] = read_examples(file)

        def tokenise() -> None:
            held["packed"] = encode(held["examples"], tokenizer, max_length=128)

        figures = {"read": timed(read), "tokenise": timed(tokenise)}
        figures["MiB"], figures["MiB_of_file"] = (peak() - before) / 2**20, size / 2**20
    column = held["examples"].column("text")
    backend = tokenizer.backend_tokenizer

    def chunks(call: Callable[[list[str]], Any]) -> float:
        return timed(lambda: [call(column[start : start + 8192]) and None for start in range(0, len(column), 8192)])

    figures["tokenizer_called"] = chunks(lambda part: tokenizer(part, truncation=True, max_length=128))
    figures["tokenizer_alone"] = chunks(backend.encode_batch_fast)
    whole = figures["read"] + figures["tokenise"]
    figures["against_tokenizer_called"] = figures["tokenizer_called"] / whole
    figures["against_tokenizer_alone"] = figures["tokenizer_alone"] / whole
    return figures


def recording(rows: int, classes: int = 3, epochs: int = 1, batch: int = 4096) -> Figures:
    """The dynamics of every sample recorded, batch by batch."""
    logits = torch.randn(min(batch, rows), classes)
    before = resident()
    recorder = Recorder(rows)

    def record() -> None:
        for _ in range(epochs):
            for start in range(0, rows, batch):
                where = torch.arange(start, min(start + batch, rows))
                recorder.update(logits[: len(where)], where % classes, where)
            recorder.end_epoch()
        recorder.statistics()

    return {"seconds": timed(record), "MiB": (peak() - before) / 2**20}


def streaming(rows: int, classes: int = 3, batch: int = 4096) -> Figures:
    """Calibration errors counted batch by batch."""
    probs = torch.randn(min(batch, rows), classes).softmax(1)
    labels = probs.argmax(1)
    before = resident()
    held = [BinCounts.empty()]

    def count() -> None:
        for start in range(0, rows, batch):
            held[0] = held[0].update(probs[: rows - start], labels[: rows - start])

    return {"seconds": timed(count), "MiB": (peak() - before) / 2**20}


def repeated(epochs: int) -> Figures:
    return recording(20_000, epochs=epochs)


def over_classes(classes: int) -> Figures:
    return recording(4_096, classes=classes, batch=512)


def streamed_classes(classes: int) -> Figures:
    return streaming(4_096, classes=classes, batch=512)


def predicting(rows: int) -> Figures:
    """Predictions made and thrown away, some rows at a time, by a model too small to matter."""
    from transformers import BertConfig, BertForSequenceClassification

    from calmix.models import Classifier

    _, tokenizer = load_for_training(resolve("minilm"), label_names=("a", "b"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=2,
    )
    classifier = Classifier(BertForSequenceClassification(config), tokenizer, ("a", "b"))
    examples = Examples.from_texts(texts(rows))
    before = resident()
    seconds = timed(lambda: [len(table) for table in prediction_tables(examples, classifier)])
    return {"seconds": seconds, "MiB": (peak() - before) / 2**20}


def losing(classes: int) -> Figures:
    """A step of a head of so many classes: the loss of mixed targets, its gradient, and the record of it."""
    from calmix.mixing.targets import cross_entropy

    logits = torch.randn(32, classes, requires_grad=True)
    targets = torch.nn.functional.one_hot(torch.arange(32) % classes, classes).float()
    recorder, rows = Recorder(32), torch.arange(32)

    def step() -> None:
        cross_entropy(logits, 0.5 * targets + 0.5 * targets.flip(0)).sum().backward()
        recorder.update(logits, rows % classes, rows)

    step()
    return {"seconds": timed(lambda: [step() for _ in range(20)]) / 20}


def wide(length: int) -> Figures:
    """Sixteen texts of so many tokens through MiniLM."""
    network, tokenizer = load_for_training(resolve("minilm"), label_names=("a", "b"))
    packed = encode(Examples.from_texts([" ".join(["call"] * (length - 2))] * 16), tokenizer, max_length=length)
    predict_logits(network, packed)
    before = resident()
    return {"seconds": timed(lambda: predict_logits(network, packed)), "MiB": (peak() - before) / 2**20}


def learning(length: int) -> Figures:
    """A training step of MiniLM on sixteen texts of so many tokens."""
    examples = Examples.from_texts([" ".join(["call"] * (length - 2))] * 16, ["a", "b"] * 8)
    step = our_step(examples, "minilm", "erm", Accelerator(cpu=True), max_length=length)
    layout = {"batch_size": 16, "accumulate": 1, "seed": 0, "rank": 0, "world": 1}
    first, then = (next(epoch_steps(step.data, step.method, epoch, **layout)) for epoch in range(2))
    step.stepper.step(first, 0, RATE)
    before = resident()
    return {"seconds": timed(lambda: step.stepper.step(then, 1, RATE)), "MiB": (peak() - before) / 2**20}


def resident() -> int:
    """Return the bytes in use, and let `peak` begin from there."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def alone(measure: Callable[[int], Figures], size: int) -> Figures:
    """Return what a process of its own measures."""
    with mp.get_context("fork").Pool(1) as pool:
        return pool.apply(measure, (size,))


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope through the logarithms of the larger half of the sizes."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(np.maximum(values[half:], 1e-9)), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = [n for n in (1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000) if n <= options.largest]
    many = [2, 10, 100, 1_000, 3_000, 10_000]
    plan: dict[str, tuple[Callable[[int], Figures], list[int]]] = {
        "samples: CSV read and tokenised": (reading, every),
        "samples: dynamics recorded": (recording, every),
        "samples: metrics streamed": (streaming, every),
        "samples: predicted in chunks": (predicting, every),
        "epochs: dynamics recorded": (repeated, [1, 2, 4, 8, 16]),
        "classes: dynamics recorded": (over_classes, many),
        "classes: metrics streamed": (streamed_classes, many),
        "classes: loss, gradient, record": (losing, many),
        "tokens: forward": (wide, [16, 32, 64, 128, 256, 512]),
        "tokens: training step": (learning, [16, 32, 64, 128, 256, 512]),
    }
    told: dict[str, Any] = {"processor": processor(), "threads": 1, "torch": torch.__version__}
    found: dict[str, Any] = {}
    for name, (measure, sizes) in plan.items():
        rows = [alone(measure, size) for size in sizes]
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        found[name] = {"sizes": sizes, **columns, "exponents": {k: exponent(sizes, v) for k, v in columns.items()}}
        print(name, flush=True)
        print(f"  {'':26}" + "".join(f"{size:>12,}" for size in sizes) + f"{'exponent':>12}")
        for key, values in columns.items():
            slope = found[name]["exponents"][key]
            print(f"  {key:26}" + "".join(f"{value:12.4g}" for value in values) + f"{slope:12.2f}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({**told, "growth": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
