"""Training speed, side by side in one run: the Hugging Face Trainer, our plain step, our captured step, each recipe.

    python benchmarks/training.py --data pairs.jsonl --model minilm --batch-size 32

Prints samples per second after a warm-up, and ratios; medians of several stretches of steps.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments

from calmix.data import Examples, read_examples
from calmix.data.corpus import corpus_path
from calmix.dynamics import Dynamics
from calmix.mixing import choose, fill_tokens
from calmix.models import encode, load_for_training, resolve, usable_length
from calmix.training.batches import epoch_steps, training_set
from calmix.training.guiding import Guidance
from calmix.training.launching import precision_for
from calmix.training.optimising import adamw
from calmix.training.stepping import Stepper

STRETCHES = 5


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
    began = time.perf_counter()
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision="bf16" if precision_for("auto") == "bf16" else "no")
    network, tokenizer = load_for_training(
        resolve(model), label_names=examples.label_names, choices=examples.kind == "choices"
    )
    network.to(accelerator.device).train()
    packed = encode(examples, tokenizer, max_length=usable_length(tokenizer, network.config, 256))
    data = training_set(examples, packed).to(accelerator.device)
    method = choose(recipe)
    optimizer = adamw(network.parameters(), lr=5e-5, weight_decay=0.0)
    # Guided recipes need dynamics: any will do for their speed.
    scores = np.random.default_rng(0).normal(size=(2, len(examples), len(examples.label_names)))
    told = None if method.guide is None else Dynamics.from_logits(scores, examples.labels)
    guidance = Guidance(method, network, data, accelerator, dynamics=told)
    stepper = Stepper(
        network,
        data,
        method,
        accelerator,
        optimizer,
        fill=fill_tokens(tokenizer),
        seed=0,
        clip=1.0,
        guidance=guidance if record else None,
        capture=capture,
    )
    layouts = (
        parts
        for epoch in range(10**6)
        for parts in epoch_steps(
            data,
            method,
            epoch,
            batch_size=batch_size,
            accumulate=1,
            seed=0,
            rank=0,
            world=1,
            signals=guidance.columns,
        )
    )
    number = 0
    first = 0.0
    # A recipe of several kinds of step has a graph to capture for each kind and length.
    for _ in range(warmup if method.variants(network) == 1 else 5 * warmup):
        stepper.step(next(layouts), number, 5e-5)
        number += 1
        if number == 1:
            wait()
            first = time.perf_counter() - began
    wait()
    rates = []
    for _ in range(STRETCHES):
        rows, start = 0, time.perf_counter()
        for _ in range(steps // STRETCHES):
            parts = next(layouts)
            stepper.step(parts, number, 5e-5)
            rows, number = rows + parts[-1].batch, number + 1
        wait()
        rates.append(rows / (time.perf_counter() - start))
    stepper.read(None)
    memory = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return {"samples_per_second": statistics.median(rates), "first_step_seconds": first, "peak_mib": memory}


class Clock(TrainerCallback):
    """Notes the time at the end of the warm-up and of each stretch."""

    def __init__(self, marks: list[int]) -> None:
        self.marks, self.times = marks, {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step in self.marks:
            wait()
            self.times[state.global_step] = time.perf_counter()


def huggingface(examples: Examples, model: str, *, batch_size: int, warmup: int, steps: int, workers: int) -> float:
    """Return samples per second of the Hugging Face Trainer with its usual fast settings."""
    AcceleratorState._reset_state()
    torch.manual_seed(0)
    network, tokenizer = load_for_training(resolve(model), label_names=examples.label_names)
    second = examples.column("text_b") if examples.kind == "pair" else None
    encoded = tokenizer(examples.column("text"), second, truncation=True, max_length=256)
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
        for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], examples.labels, strict=True)
    ]
    stretch = steps // STRETCHES
    clock = Clock([warmup + i * stretch for i in range(STRETCHES + 1)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch_size,
            max_steps=warmup + steps,
            learning_rate=5e-5,
            bf16=precision_for("auto") == "bf16",
            use_cpu=not torch.cuda.is_available(),
            optim="adamw_torch_fused",
            dataloader_num_workers=workers,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Trainer(
            network,
            arguments,
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[clock],
        ).train()
    times = [clock.times[mark] for mark in clock.marks]
    return statistics.median(batch_size * stretch / (b - a) for a, b in pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--recipes",
        default="erm,cls-mixup,aum-saliency,tdmixup,informed-mixup,input-mixup,manifold-mixup,on-off-manifold",
    )
    parser.add_argument("--json")
    options = parser.parse_args()
    examples = read_examples(options.data)
    common = {"batch_size": options.batch_size, "warmup": options.warmup, "steps": options.steps}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}, batch {options.batch_size}, {len(examples)} samples of {options.data}")
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "batch_size": options.batch_size}

    def show(name: str, measure: Callable[[], Any]) -> None:
        value = measure()
        figures = value if isinstance(value, dict) else {"samples_per_second": value}
        found[name] = figures
        base = found.get("Hugging Face Trainer", figures)["samples_per_second"]
        rate = figures["samples_per_second"]
        rest = "  ".join(f"{k} {v:,.1f}" for k, v in figures.items() if k != "samples_per_second")
        print(f"{name:32} {rate:10,.0f} samples/s  {rate / base:6.2f}× Trainer  {rest}", flush=True)

    show(
        "Hugging Face Trainer",
        lambda: huggingface(examples, options.model, workers=options.workers, **common),
    )
    show("erm, not captured", lambda: ours(examples, options.model, "erm", capture=False, record=False, **common))
    show("erm, nothing recorded", lambda: ours(examples, options.model, "erm", record=False, **common))
    for recipe in options.recipes.split(","):
        show(recipe, lambda r=recipe: ours(examples, options.model, r, **common))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
