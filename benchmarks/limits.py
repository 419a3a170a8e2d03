"""Where the time of a training step goes, and how far that is from what the device could do.

    python benchmarks/limits.py --data pairs.jsonl --model minilm --json limits.json

Profiles steps as `calmix train` makes them, after a warm-up, and adds up what runs on the device by kind: on a GPU the
kernels of replayed graphs, on a processor its operations. Beside it are two limits that no step can pass, from what
this very device was just seen to do: the arithmetic of a step at the pace of a large product of matrices, and the bytes
that its weights, gradients and AdamW's moments are at the pace of a large copy. Times are the clock's on a GPU, and
the processor's elsewhere.
"""

import argparse
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import RATE, STRETCHES, OurStep, device_name, our_step, processor, wait
from seeds import models_for, stacked
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from calmix.data import read_examples
from calmix.data.corpus import corpus_path
from calmix.training.batches import Part, epoch_steps
from calmix.training.launching import precision_for

CUDA = torch.cuda.is_available()
now = time.perf_counter if CUDA else time.process_time
DEVICE = torch.device("cuda" if CUDA else "cpu")
# Kernels of our own by name; of others, what is in a kernel's name → what it does; the first that fits.
OURS = {
    "attention": ("attend", "attend_back"),
    "update of the weights": ("squares", "decide", "update"),
    "normalisation, residuals and dropout": ("add_norm", "add_norm_back"),
    "activation": ("gelu", "gelu_back"),
    "sums for biases and norms": ("totals",),
    "embeddings": ("embed", "embed_back", "collect"),
    "batches, losses, dynamics": ("pad", "mark", "losses", "gradients", "partners", "record"),
}
KINDS = {
    "attention": ("flash", "fmha", "attention", "softmax"),
    "update of the weights": ("adam",),
    "products of matrices": ("gemm", "cutlass", "nvjet", "xmma", "mm", "linear", "matmul"),
    "normalisation": ("norm",),
    "copies and casts": ("copy", "memcpy", "memset", "fill", "cat", "to_copy"),
    "lookups": ("embedding", "index", "gather", "scatter"),
    "sums": ("reduce", "sum"),
    "random numbers": ("random", "distribution", "dropout", "bernoulli"),
    "element by element": ("elementwise", "gelu", "add", "mul", "div"),
}


def kind_of(name: str) -> str:
    """Return what a kernel does, by its name."""
    for kind, names in OURS.items():
        if name in names:
            return kind
    name = name.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "everything else")


def pace_of_products(dtype: torch.dtype, side: int) -> float:
    """Return the floating-point operations that this device does in a second, in a large product."""
    one, other = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
    return 2 * side**3 / _fastest(lambda: one @ other)


def pace_of_memory(mib: int) -> float:
    """Return the bytes that this device reads and writes in a second, in a large copy."""
    one, other = (torch.empty(mib << 18, device=DEVICE) for _ in range(2))
    return 2 * one.numel() * 4 / _fastest(lambda: other.copy_(one))


def _fastest(work: Any) -> float:
    seconds = []
    for _ in range(5):
        wait()
        began = now()
        work()
        wait()
        seconds.append(now() - began)
    return min(seconds)


def arithmetic_of(step: OurStep, batches: list[list[Part]]) -> float:
    """Return the floating-point operations of a plain forward and backward pass, on average over some batches."""
    counts = []
    for (part,) in batches:
        inputs = step.data.packed.batch(part.rows, width=part.width, choices=part.choices)
        with FlopCounterMode(display=False) as counter:
            step.network(**inputs).logits.float().logsumexp(-1).sum().backward()
        step.network.zero_grad(set_to_none=True)
        counts.append(counter.get_total_flops())
    return statistics.mean(counts)


def bytes_of(step: OurStep, *, half: bool) -> float:
    """Return the bytes that an update cannot do without: weights, both moments, gradients, and copies of the weights.

    Float32 weights and moments are read and written, gradients written and read; in bf16, copies are written and read.
    """
    weights = sum(p.numel() for p in step.network.parameters() if p.requires_grad)
    return weights * (2 * 3 * 4 + (2 * 2 + 2 * 2 if half else 2 * 4))


def batches_of(step: OurStep, batch_size: int) -> Iterator[list[Part]]:
    """Yield the batches of one epoch after the other."""
    for epoch in range(10**6):
        yield from epoch_steps(
            step.data,
            step.method,
            epoch,
            signals=step.guidance.columns,
            batch_size=batch_size,
            accumulate=1,
            seed=0,
            rank=0,
            world=1,
        )


def profiled(make: Callable[[int], int], count: int) -> tuple[dict[str, float], int]:
    """Return the seconds that each kind of work takes in a step, and how many kernels (or operations) there are."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
    with profile(activities=activities) as found:
        make(count)
    seconds: dict[str, float] = defaultdict(float)
    kernels = 0
    for event in found.events() or ():
        on_device = event.device_type == (DeviceType.CUDA if CUDA else DeviceType.CPU)
        time_us = event.time_range.elapsed_us() if CUDA else event.self_cpu_time_total
        if on_device and time_us > 0 and (CUDA or event.name.startswith(("aten::", "mkldnn", "onednn"))):
            seconds[kind_of(event.name)] += time_us / 1e6 / count
            kernels += 1
    return dict(sorted(seconds.items(), key=lambda item: -item[1])), round(kernels / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--recipe", default="erm")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=1, help="trained side by side, as a study does on a GPU")
    parser.add_argument("--warmup", type=int, default=120)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--side", type=int, default=8192 if CUDA else 2048, help="of the matrices that set the pace")
    parser.add_argument("--json")
    options = parser.parse_args()
    AcceleratorState._reset_state()
    half = precision_for("auto") == "bf16"
    examples = read_examples(options.data)
    accelerator = Accelerator(mixed_precision="bf16" if half else "no")
    if options.seeds == 1:
        step = our_step(examples, options.model, options.recipe, accelerator)
        upcoming = batches_of(step, options.batch_size)

        def one(number: int) -> int:
            parts = next(upcoming)
            step.stepper.step(parts, number, RATE)
            return parts[-1].batch
    else:
        models = models_for(examples, options.seeds, options)
        step, one = models[0], stacked(models)
    number = 0

    def make(count: int) -> int:
        nonlocal number
        rows = sum(one(number + place) for place in range(count))
        number += count
        wait()
        return rows

    make(options.warmup)
    times, rows = [], 0
    for _ in range(STRETCHES):
        began = now()
        rows += make(max(1, options.steps // STRETCHES))
        times.append((now() - began) / max(1, options.steps // STRETCHES))
    wall = statistics.median(times)
    kinds, kernels = profiled(make, min(20, options.steps))
    some = list(itertools.islice(batches_of(step, options.batch_size), 20))
    operations, moved = options.seeds * arithmetic_of(step, some), options.seeds * bytes_of(step, half=half)
    products = pace_of_products(torch.bfloat16 if half else torch.float32, options.side)
    memory = pace_of_memory(1024 if CUDA else 64)
    found: dict[str, Any] = {
        "device": device_name() if CUDA else processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": "bf16" if half else "fp32",
        "recipe": options.recipe,
        "batch_size": options.batch_size,
        "seeds": options.seeds,
        "rows_a_step": rows / (STRETCHES * max(1, options.steps // STRETCHES)),
        "step_ms": 1e3 * wall,
        "kernels_a_step": kernels,
        "ms_by_kind": {kind: 1e3 * seconds for kind, seconds in kinds.items()},
        "operations_a_step": operations,
        "operations_a_second": products,
        "limit_of_arithmetic_ms": 1e3 * operations / products,
        "bytes_a_step": moved,
        "bytes_a_second": memory,
        "limit_of_memory_ms": 1e3 * moved / memory,
    }
    busy = sum(kinds.values())
    print(
        f"{found['device']}, torch {torch.__version__}, {found['precision']}, {options.recipe}, seeds: {options.seeds}"
    )
    print(
        f"a step of {found['rows_a_step']:.1f} rows takes {1e3 * wall:.3f} ms; {kernels} kernels, {1e3 * busy:.3f} ms"
    )
    for kind, seconds in kinds.items():
        print(f"  {kind:24} {1e3 * seconds:9.3f} ms {seconds / busy:7.1%}")
    for name, limit in (("arithmetic", operations / products), ("memory", moved / memory)):
        rate = found["rows_a_step"] / limit
        print(
            f"{name} alone: {1e3 * limit:.3f} ms a step, {rate:,.0f} samples/s, {wall / limit:.1f}× less than it takes"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
