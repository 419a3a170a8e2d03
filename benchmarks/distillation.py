"""What a teacher costs: distillation with logits kept, and with a teacher asked in every step, against plain training.

    python benchmarks/distillation.py --data train.jsonl --model minilm --teacher run

The three loops take turns, stretch by stretch, on the very same batches, so that whatever else the machine does hits
all of them; the ratios are medians over the rounds. Without --teacher, an untrained head on --model teaches.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import device_name, wait

from calmix.data import Examples, read_examples
from calmix.data.corpus import corpus_path
from calmix.mixing import choose, fill_tokens
from calmix.models import encode, load_for_training, resolve, save, usable_length
from calmix.training.batches import Part, TrainingSet, epoch_steps, training_set
from calmix.training.guiding import Guidance
from calmix.training.optimising import adamw
from calmix.training.stepping import Stepper
from calmix.training.teachers import lesson_of, load_teachers


def untrained(model: str, examples: Examples, folder: Path) -> Path:
    """Return a checkpoint with a head for these labels, as drawn."""
    torch.manual_seed(1)
    save(*load_for_training(resolve(model), label_names=examples.label_names), folder)
    return folder


def batches(data: TrainingSet, batch_size: int) -> Iterator[list[Part]]:
    """Yield the batches of one epoch after the other."""
    plain = choose("erm")
    for epoch in range(10**6):
        yield from epoch_steps(data, plain, epoch, batch_size=batch_size, accumulate=1, seed=0, rank=0, world=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm", help="the student")
    parser.add_argument("--teacher", help="a run folder or any classifier of these labels")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=60, help="steps of each loop that are not counted")
    parser.add_argument("--steps", type=int, default=50, help="steps of a stretch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    examples = read_examples(options.data)
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
    device = device_name()
    print(f"{device}, torch {torch.__version__}, batch {options.batch_size}, {len(examples)} samples of {options.data}")
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "batch_size": options.batch_size}

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        teachers = load_teachers(options.teacher or untrained(options.model, examples, folder / "t"), choose("distil"))
        assert teachers is not None
        loops: dict[str, tuple[Stepper, Iterator[list[Part]]]] = {}
        for name, cache in (("plain", None), ("cached", True), ("asked in every step", False)):
            torch.manual_seed(0)
            network, tokenizer = load_for_training(resolve(options.model), label_names=examples.label_names)
            network.to(accelerator.device).train()
            packed = encode(examples, tokenizer, max_length=usable_length(tokenizer, network.config, 256))
            data = training_set(examples, packed).to(accelerator.device)
            method, given = choose("erm" if cache is None else "distil"), {}
            if cache is not None:
                began = time.perf_counter()
                given = lesson_of(teachers, folder / "run", examples, data.packed, accelerator, cache=cache)
                wait()
                if cache:
                    found["teacher_seconds"] = time.perf_counter() - began
            stepper = Stepper(
                network,
                data,
                method,
                accelerator,
                adamw(network.parameters(), lr=5e-5, weight_decay=0.0),
                fill=fill_tokens(tokenizer),
                seed=0,
                clip=1.0,
                guidance=Guidance(method, network, data, accelerator, given=given),
            )
            loops[name] = stepper, batches(data, options.batch_size)
        print(f"the teacher read all texts in {found['teacher_seconds']:.1f} s, once")

        number = dict.fromkeys(loops, 0)
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        rows = 0
        names = list(loops)
        for turn in range(options.rounds + 1):
            count = options.steps if turn else options.warmup
            # Nobody always goes first.
            for name in names[turn % 3 :] + names[: turn % 3]:
                stepper, steps = loops[name]
                began, seen = time.perf_counter(), 0
                for _ in range(count):
                    parts = next(steps)
                    stepper.step(parts, number[name], 5e-5)
                    number[name], seen = number[name] + 1, seen + parts[-1].batch
                wait()
                if turn:
                    seconds[name].append(time.perf_counter() - began)
                    rows += seen if name == "plain" else 0
        for stepper, _ in loops.values():
            stepper.read(None)

    for name, times in seconds.items():
        ratio = statistics.median(mine / plain for mine, plain in zip(times, seconds["plain"], strict=True))
        rate = rows / sum(seconds["plain"]) / ratio
        found[name] = {"samples_per_second": rate, "times_plain": ratio, "stretches": times}
        print(f"{name:20} {rate:10,.0f} samples/s  {ratio:6.3f}× plain")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
