"""Training speed, side by side in one run: the Hugging Face Trainer, a plain torch loop, our step, each recipe.

    python benchmarks/training.py --data pairs.jsonl --model minilm --batch-size 32

Prints samples per second after a warm-up, and ratios; medians of several stretches of steps. Of our own, stretches
in which a shape of batch came for the first time are passed over, and counted: capturing it takes as long as tens of
steps, and is no part of what a step takes.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import (
    RATE,
    STRETCHES,
    Clock,
    Memory,
    device_name,
    our_step,
    plain_steps,
    train_with_trainer,
    trainer_rows,
    wait,
)
from transformers import DataCollatorWithPadding

from calmix.data import Examples, read_examples
from calmix.data.corpus import corpus_path
from calmix.models import load_for_training, resolve
from calmix.training.batches import epoch_steps
from calmix.training.launching import precision_for
from calmix.training.stepping import Stepper

MOST = 100  # stretches that are passed over, before anything is taken


def ours(
    examples: Examples,
    model: str,
    recipe: str,
    *,
    batch_size: int,
    warmup: int,
    steps: int,
    capture: bool = True,
    record: bool = True,
) -> dict[str, float]:
    """Return samples per second of our loop's step, and the seconds to the first one."""
    AcceleratorState._reset_state()
    memory = Memory()
    began = time.perf_counter()
    accelerator = Accelerator(mixed_precision="bf16" if precision_for("auto") == "bf16" else "no")
    mine = our_step(examples, model, recipe, accelerator, capture=capture, record=record)
    stepper, layout = mine.stepper, {"batch_size": batch_size, "accumulate": 1, "seed": 0, "rank": 0, "world": 1}
    layouts = (
        parts
        for epoch in range(10**6)
        for parts in epoch_steps(mine.data, mine.method, epoch, signals=mine.guidance.columns, **layout)
    )
    number = 0
    first = 0.0
    for _ in range(warmup):
        stepper.step(next(layouts), number, RATE)
        number += 1
        if number == 1:
            wait()
            first = time.perf_counter() - began
    wait()
    rates: list[float] = []
    passed_over = 0
    while len(rates) < STRETCHES:
        rows, start, known = 0, time.perf_counter(), shapes(stepper)
        for _ in range(steps // STRETCHES):
            parts = next(layouts)
            stepper.step(parts, number, RATE)
            rows, number = rows + parts[-1].batch, number + 1
        wait()
        if shapes(stepper) > known and passed_over < MOST:
            passed_over += 1
        else:
            rates.append(rows / (time.perf_counter() - start))
    stepper.read(None)
    found = {"samples_per_second": statistics.median(rates), "first_step_seconds": first, "passed_over": passed_over}
    return {**found, **memory.figures()}


def shapes(stepper: Stepper) -> int:
    """Return how many shapes and kinds of step have come so far, where steps are captured."""
    return 0 if stepper.captures is None else len(stepper.captures.graphs) + len(stepper.captures.warm)


def plain(
    examples: Examples, model: str, *, batch_size: int, warmup: int, steps: int, workers: int
) -> dict[str, float]:
    """Return samples per second of a plain torch loop, and its memory."""
    memory = Memory()
    loop = plain_steps(examples, model, batch_size=batch_size, bf16=precision_for("auto") == "bf16", workers=workers)
    for _ in range(warmup):
        next(loop)
    rates = []
    for _ in range(STRETCHES):
        wait()
        start = time.perf_counter()
        rows = sum(next(loop) for _ in range(steps // STRETCHES))
        wait()
        rates.append(rows / (time.perf_counter() - start))
    return {"samples_per_second": statistics.median(rates), **memory.figures()}


def huggingface(
    examples: Examples, model: str, *, batch_size: int, warmup: int, steps: int, workers: int
) -> dict[str, float]:
    """Return samples per second of the Hugging Face Trainer with its usual fast settings, and its memory."""
    AcceleratorState._reset_state()
    memory = Memory()
    torch.manual_seed(0)
    network, tokenizer = load_for_training(resolve(model), label_names=examples.label_names)
    clock = Clock(warmup, steps)
    train_with_trainer(
        network,
        trainer_rows(examples, tokenizer),
        batch_size=batch_size,
        steps=warmup + steps,
        callbacks=[clock],
        collator=DataCollatorWithPadding(tokenizer),
        learning_rate=RATE,
        bf16=precision_for("auto") == "bf16",
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch_fused",
        dataloader_num_workers=workers,
    )
    return {"samples_per_second": clock.rate(batch_size), **memory.figures()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=20_000, help="of the data, at most")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--recipes",
        default="erm,label-smoothing,erl,cls-mixup,aum-saliency,tdmixup,informed-mixup,input-mixup,manifold-mixup,"
        "feature-mixup,on-off-manifold,erm",
        help="measured in this order; one that is named again is kept as `NAME, again`",
    )
    parser.add_argument("--no-rivals", action="store_true", help="the recipes alone, against the first of them")
    parser.add_argument("--json")
    options = parser.parse_args()
    examples = read_examples(options.data)
    examples = examples.take(range(min(options.rows, len(examples))))
    common = {"batch_size": options.batch_size, "warmup": options.warmup, "steps": options.steps}
    device = device_name()
    print(f"{device}, torch {torch.__version__}, batch {options.batch_size}, {len(examples)} samples of {options.data}")
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "samples": len(examples), **common}

    def show(name: str, measure: Callable[[], dict[str, float]]) -> None:
        name = f"{name}, again" if name in found else name
        found[name] = figures = measure()
        first = next(name for name, value in found.items() if isinstance(value, dict))
        base, rate = found[first]["samples_per_second"], figures["samples_per_second"]
        rest = "  ".join(f"{k} {v:,.1f}" for k, v in figures.items() if k != "samples_per_second")
        print(f"{name:32} {rate:10,.0f} samples/s  {rate / base:6.2f}× {first}  {rest}", flush=True)

    if not options.no_rivals:
        show(
            "Hugging Face Trainer",
            lambda: huggingface(examples, options.model, workers=options.workers, **common),
        )
        show("plain torch loop", lambda: plain(examples, options.model, workers=options.workers, **common))
        show("erm, not captured", lambda: ours(examples, options.model, "erm", capture=False, record=False, **common))
        show("erm, nothing recorded", lambda: ours(examples, options.model, "erm", record=False, **common))
    for recipe in options.recipes.split(","):
        show(recipe, lambda r=recipe: ours(examples, options.model, r, **common))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
