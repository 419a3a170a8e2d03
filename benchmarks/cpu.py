"""Training on the CPU, side by side in one run: the Hugging Face Trainer, a plain torch loop, our step for each recipe.

    python benchmarks/cpu.py --data pairs.jsonl --model minilm --threads 2 --json out.json

Every competitor trains one epoch of the same texts; they take turns after every few steps, so that whatever else the
machine does slows all of them alike. What counts is the processor time per row (waiting of threads counts, too; the
clock is printed beside it). The Trainer has its default padding collator, as it comes (float32) and told to use bf16,
and so has the plain loop; ours follows `--precision`, by default whichever this processor is faster with.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import RATE, our_step, plain_steps, processor, train_with_trainer, trainer_rows
from transformers import DataCollatorWithPadding, TrainerCallback

from calmix.data import Examples, read_examples
from calmix.data.corpus import corpus_path
from calmix.models import load_for_training, resolve
from calmix.training.batches import epoch_steps
from calmix.training.launching import precision_for

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
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
    mine = our_step(examples, model, recipe, accelerator)
    stepper, layout = mine.stepper, {"batch_size": batch_size, "accumulate": 1, "seed": 0, "rank": 0, "world": 1}
    steps = list(epoch_steps(mine.data, mine.method, 0, signals=mine.guidance.columns, **layout))
    for number, parts in enumerate(steps[:WARMUP]):
        stepper.step(parts, number, RATE)
    for first in range(0, len(steps), TURN):
        yield
        watch.start()
        for number, parts in enumerate(steps[first : first + TURN], first):
            stepper.step(parts, number, RATE)
        watch.stop(sum(parts[-1].batch for parts in steps[first : first + TURN]))
    stepper.read(None)


def plain(examples: Examples, model: str, *, batch_size: int, bf16: bool, watch: Watch) -> Iterator[None]:
    """Train as many rows with a plain torch loop, a turn for each `next`, after some steps of warm-up."""
    loop = plain_steps(examples, model, batch_size=batch_size, bf16=bf16)
    for _ in range(WARMUP):
        next(loop)
    for _ in range(len(examples) // batch_size // TURN):
        yield
        watch.start()
        watch.stop(sum(next(loop) for _ in range(TURN)))


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
    train_with_trainer(
        network,
        trainer_rows(examples, tokenizer),
        batch_size=batch_size,
        steps=WARMUP + len(examples) // batch_size // TURN * TURN,
        callbacks=[Turns(watch, others)],
        collator=DataCollatorWithPadding(tokenizer),
        learning_rate=RATE,
        bf16=bf16,
        use_cpu=True,
    )


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
        trainer, simple = Watch(), Watch()
        watches = {name: Watch() for name in asked}
        racers = [plain(examples, options.model, bf16=bf16, watch=simple, **common)]
        racers += [
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
        rivals = {f"Hugging Face Trainer, {arithmetic}": trainer, f"plain torch loop, {arithmetic}": simple}
        for name, watch in (rivals | watches).items():
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


if __name__ == "__main__":
    main()
