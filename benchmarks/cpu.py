"""Training on the CPU, side by side in one run: the Hugging Face Trainer, and our step for each recipe.

    python benchmarks/cpu.py --data pairs.jsonl --model minilm --threads 2 --json out.json

Every competitor trains one epoch of the same texts; they take turns after every few steps, so that whatever else the
machine does slows all of them alike. What counts is the processor time per row (waiting of threads counts, too; the
clock is printed beside it). The Trainer has its default padding collator, as it comes (float32) and told to use bf16;
ours follows `--precision`, by default whichever this processor is faster with.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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

TURN = 2
WARMUP = 3


class Watch:
    """Seconds of the clock and of the processor, of the stretches between `start` and `stop`, and rows trained."""

    def __init__(self) -> None:
        self.clock = self.processor = 0.0
        self.rows = 0

    def start(self) -> None:
        self.clock -= time.perf_counter()
        self.processor -= time.process_time()

    def stop(self, rows: int) -> None:
        self.rows += rows
        self.clock += time.perf_counter()
        self.processor += time.process_time()


def ours(
    examples: Examples, model: str, recipe: str, *, batch_size: int, precision: str, watch: Watch
) -> Iterator[None]:
    """Train an epoch of ours, a turn for each `next`, after some steps of warm-up."""
    AcceleratorState._reset_state()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
    network, tokenizer = load_for_training(
        resolve(model), label_names=examples.label_names, choices=examples.kind == "choices"
    )
    network.train()
    packed = encode(examples, tokenizer, max_length=usable_length(tokenizer, network.config, 256))
    data, method = training_set(examples, packed), choose(recipe)
    # Guided recipes need dynamics: any will do for their speed.
    scores = np.random.default_rng(0).normal(size=(2, len(examples), len(examples.label_names)))
    told = None if method.guide is None else Dynamics.from_logits(scores, examples.labels)
    guidance = Guidance(method, network, data, accelerator, dynamics=told)
    optimizer = adamw(network.parameters(), lr=5e-5, weight_decay=0.0)
    fill = fill_tokens(tokenizer)
    stepper = Stepper(network, data, method, accelerator, optimizer, fill=fill, seed=0, clip=1.0, guidance=guidance)
    layout = {"batch_size": batch_size, "accumulate": 1, "seed": 0, "rank": 0, "world": 1}
    steps = list(epoch_steps(data, method, 0, signals=guidance.columns, **layout))
    for number, parts in enumerate(steps[:WARMUP]):
        stepper.step(parts, number, 5e-5)
    for first in range(0, len(steps), TURN):
        yield
        watch.start()
        for number, parts in enumerate(steps[first : first + TURN], first):
            stepper.step(parts, number, 5e-5)
        watch.stop(sum(parts[-1].batch for parts in steps[first : first + TURN]))
    stepper.read(None)


class Turns(TrainerCallback):
    """Lets the others take their turn between the steps of the Trainer, and does not count their time."""

    def __init__(self, watch: Watch, others: Callable[[], None]) -> None:
        self.watch, self.others = watch, others

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step - WARMUP
        if step < 0 or step % TURN:
            return
        if step:
            self.watch.stop(TURN * args.per_device_train_batch_size)
        self.others()
        if state.global_step < state.max_steps:
            self.watch.start()


def huggingface(
    examples: Examples, model: str, *, batch_size: int, bf16: bool, watch: Watch, others: Callable[[], None]
) -> None:
    """Train as many rows as an epoch has with the Hugging Face Trainer; the others take turns with it."""
    AcceleratorState._reset_state()
    torch.manual_seed(0)
    network, tokenizer = load_for_training(resolve(model), label_names=examples.label_names)
    second = examples.column("text_b") if examples.kind == "pair" else None
    encoded = tokenizer(examples.column("text"), second, truncation=True, max_length=256)
    rows = [
        {**{name: cells[i] for name, cells in encoded.items()}, "labels": int(label)}
        for i, label in enumerate(examples.labels)
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch_size,
            max_steps=WARMUP + len(rows) // batch_size // TURN * TURN,
            learning_rate=5e-5,
            bf16=bf16,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        collator = DataCollatorWithPadding(tokenizer)
        turns = Turns(watch, others)
        Trainer(network, arguments, train_dataset=rows, data_collator=collator, callbacks=[turns]).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=1280)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--recipes", default="erm,cls-mixup,aum-saliency,tdmixup,informed-mixup")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    examples = read_examples(options.data)
    # Whole batches for everybody: each competitor then trains every row once.
    rows = min(options.rows, len(examples)) // (TURN * options.batch_size) * TURN * options.batch_size
    examples = examples.take(np.random.default_rng(0).permutation(len(examples))[:rows])
    precision = precision_for(options.precision)
    told: dict[str, Any] = {
        "processor": processor(),
        "threads": options.threads,
        "torch": torch.__version__,
        "data": Path(options.data).parent.name + "/" + Path(options.data).name,
        "rows": rows,
        "batch_size": options.batch_size,
        "our_precision": precision,
    }
    print(", ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    found: dict[str, dict[str, dict[str, float]]] = {}
    common = {"batch_size": options.batch_size}
    recipes = options.recipes.split(",")
    for bf16 in (False, True):
        arithmetic = "bf16" if bf16 else "fp32"
        # Beside the second Trainer only erm runs again, for the ratio of the two.
        asked = {name: (name, precision) for name in (recipes if not bf16 else recipes[:1])}
        if not bf16 and precision == "bf16":
            asked[f"{recipes[0]}, fp32"] = (recipes[0], "fp32")
        trainer = Watch()
        watches = {name: Watch() for name in asked}
        racers = [
            ours(examples, options.model, recipe, precision=used, watch=watches[name], **common)
            for name, (recipe, used) in asked.items()
        ]
        for racer in racers:
            next(racer)

        def others(racers: list[Iterator[None]] = racers) -> None:
            for racer in racers:
                next(racer, None)

        huggingface(examples, options.model, bf16=bf16, watch=trainer, others=others, **common)
        found[arithmetic] = {}
        for name, watch in {f"Hugging Face Trainer, {arithmetic}": trainer, **watches}.items():
            erm = watches[recipes[0]]
            figures = {
                "samples_per_processor_second": watch.rows / watch.processor,
                "samples_per_second": watch.rows / watch.clock,
                "against_trainer": watch.rows / watch.processor * trainer.processor / trainer.rows,
                "time_against_erm": watch.processor / watch.rows * erm.rows / erm.processor,
            }
            found[arithmetic][name] = figures
            print(
                f"{name:30} {figures['samples_per_processor_second']:8.1f} samples/s of processor time "
                f"{figures['samples_per_second']:8.1f} by the clock {figures['against_trainer']:6.2f}× Trainer "
                f"{figures['time_against_erm']:6.3f}× the time of {recipes[0]}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(
            json.dumps({**told, "beside_trainer_in": found}, indent=2) + "\n", encoding="utf-8"
        )


def processor() -> str:
    """Return what this machine's processor is called, and how many there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return f"{name}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
