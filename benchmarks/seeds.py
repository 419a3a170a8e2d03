"""Several seeds on one GPU against one seed at a time, in one run on the same data: steps alone, and whole runs.

    python benchmarks/seeds.py --data pairs.jsonl --model minilm --rows 20000 --seeds 5,10

Steps: as we make them, the weights of all seeds stacked; and for comparison a captured step for each seed, all of them
replayed on streams of their own. Medians of stretches, after a warm-up. Runs: from data in memory to finished folders,
and their loops alone (dev figures and the capture of graphs included).
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import RATE, STRETCHES, OurStep, our_step, wait

import calmix
from calmix.data import Examples, read_examples, split_examples
from calmix.data.corpus import corpus_path
from calmix.training.batches import Part, epoch_steps, epoch_steps_together
from calmix.training.guiding import Guidance
from calmix.training.launching import precision_for
from calmix.training.optimising import adamw
from calmix.training.stepping import Stepper
from calmix.training.together import SideBySide, train_together

REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--recipe", default="erm")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", default="5,10")
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--steps-only", action="store_true", help="no whole runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    examples = read_examples(options.data)
    examples = examples.take(range(min(options.rows + 1000, len(examples))))
    learn, dev = split_examples(examples, dev_fraction=min(0.1, 1000 / len(examples)), seed=0)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}, {len(learn)} samples, {options.epochs} epochs", flush=True)
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "rows": len(learn), "epochs": options.epochs}
    found["steps"] = in_steps(learn, options)
    if not options.steps_only:
        with tempfile.TemporaryDirectory() as folder:
            found |= in_runs(learn, dev, Path(folder), options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


def in_steps(learn: Examples, options: Any) -> dict[str, Any]:
    """Return the samples per second of replayed steps of one seed, and of several in both ways."""
    rates: dict[str, Any] = {"1": _rate(_one(models_for(learn, 1, options)[0]), options)}
    print(f"steps of one seed: {rates['1']:,.0f} samples/s", flush=True)
    for count in map(int, options.seeds.split(",")):
        rates[str(count)] = {}
        for way, maker in (("stacked", stacked), ("streams", _streams)):
            gc.collect()
            rates[str(count)][way] = rate = _rate(maker(models_for(learn, count, options)), options)
            print(f"steps of {count} seeds, {way}: {rate:,.0f} samples/s, {rate / rates['1']:.2f}× one", flush=True)
    return rates


def models_for(learn: Examples, count: int, options: Any) -> list[OurStep]:
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision="bf16" if precision_for("auto") == "bf16" else "no")
    made: list[OurStep] = []
    for _ in range(count):
        before = made[0] if made else None
        made.append(our_step(learn, options.model, options.recipe, accelerator, beside=before))
    return made


def _one(step: OurStep) -> Callable[[int], int]:
    batches = _batches(step, 0)

    def make(number: int) -> int:
        parts = next(batches)
        step.stepper.step(parts, number, RATE)
        return parts[-1].batch

    return make


def _streams(steps: list[OurStep]) -> Callable[[int], int]:
    """Steps of their own, on streams of their own where there is a GPU."""
    streams: list[Any] = [torch.cuda.Stream() if torch.cuda.is_available() else None for _ in steps]  # type: ignore[no-untyped-call]
    batches = [_batches(step, seed) for seed, step in enumerate(steps)]

    def make(number: int) -> int:
        rows = 0
        for step, stream, upcoming in zip(steps, streams, batches, strict=True):
            parts = next(upcoming)
            rows += parts[-1].batch
            with torch.cuda.stream(stream):
                step.stepper.step(parts, number, RATE)
        return rows

    return make


def stacked(steps: list[OurStep]) -> Callable[[int], int]:
    """Steps as `train_together` makes them."""
    first, optimizers = steps[0], [adamw(step.network.parameters(), lr=RATE, weight_decay=0.0) for step in steps]
    stepper = Stepper(
        first.network,
        first.data,
        first.method,
        first.stepper.accelerator,
        optimizers[0],
        fill=first.stepper.fill,
        seed=0,
        clip=1.0,
        guidance=cast(Guidance, SideBySide([step.guidance for step in steps])),
        beside=[(step.network, optimizer) for step, optimizer in zip(steps[1:], optimizers[1:], strict=True)],
    )
    batches = (
        parts
        for epoch in range(10**6)
        for parts in epoch_steps_together(
            first.data,
            first.method,
            epoch,
            batch_size=32,
            seeds=range(len(steps)),
            signals=[step.guidance.columns for step in steps],
        )
    )

    def make(number: int) -> int:
        parts = next(batches)
        stepper.step(parts, number, RATE)
        return len(parts[0].rows)

    return make


def _batches(step: OurStep, seed: int) -> Iterator[list[Part]]:
    layout = {"batch_size": 32, "accumulate": 1, "seed": seed, "rank": 0, "world": 1}
    for epoch in range(10**6):
        yield from epoch_steps(step.data, step.method, epoch, signals=step.guidance.columns, **layout)  # type: ignore[arg-type]


def _rate(make: Callable[[int], int], options: Any) -> float:
    for number in range(options.warmup):
        make(number)
    rates, each = [], max(1, options.steps // STRETCHES)
    for stretch in range(STRETCHES):
        wait()
        began = time.perf_counter()
        rows = sum(make(options.warmup + stretch * each + step) for step in range(each))
        wait()
        rates.append(rows / (time.perf_counter() - began))
    return statistics.median(rates)


def in_runs(learn: Examples, dev: Examples, folder: Path, options: Any) -> dict[str, Any]:
    """Return the time of whole runs, one at a time and several together."""
    samples = len(learn) * options.epochs

    def asked(name: str, seed: int, **more: Any) -> dict[str, Any]:
        same = {"train": learn, "dev": dev, "model": options.model, "recipe": options.recipe, "seed": seed}
        return {**same, "epochs": options.epochs, "batch_size": 32, "out": folder / f"{name}-{seed}", **more}

    calmix.train(**asked("warm", 0, epochs=1))
    walls, loops = [], []
    for seed in range(REPEATS):
        began = time.perf_counter()
        run = calmix.train(**asked("alone", seed))
        walls.append(time.perf_counter() - began)
        loops.append(run.metrics["seconds"])
    wall, loop = statistics.median(walls), statistics.median(loops)
    print(f"one at a time: {wall:.2f} s a run, {samples / loop:,.0f} samples/s in its loop", flush=True)
    found: dict[str, Any] = {"alone": {"seconds": wall, "samples_per_second": samples / loop}}
    for count in map(int, options.seeds.split(",")):
        began = time.perf_counter()
        runs = train_together([asked(f"beside-{count}", seed) for seed in range(count)])
        taken = time.perf_counter() - began
        for made in runs:
            if isinstance(made, Exception):
                raise made
        rate = samples / statistics.median(made.metrics["seconds"] for made in runs)  # type: ignore[union-attr]
        found[str(count)] = {
            "seconds": taken,
            "share_of_separate_runs": taken / (count * wall),
            "samples_per_second": rate,
            "gain": rate * loop / samples,
        }
        print(
            f"{count} together: {taken:.2f} s, {taken / (count * wall):.2f} of as many runs; {rate:,.0f} samples/s in "
            f"their loop, {rate * loop / samples:.2f}× one at a time",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
