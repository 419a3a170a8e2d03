"""What the benchmarks of training share: our step, the Hugging Face Trainer, its clock, and what the machine is."""

import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments

from calmix.data import Examples
from calmix.dynamics import Dynamics
from calmix.mixing import Recipe, choose, fill_tokens
from calmix.models import encode, load_for_training, resolve, usable_length
from calmix.training.batches import TrainingSet, training_set
from calmix.training.guiding import Guidance
from calmix.training.optimising import adamw
from calmix.training.stepping import Stepper

STRETCHES = 5
LENGTH = 256
RATE = 5e-5


def wait() -> None:
    """Return once the device has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Memory:
    """The most GPU memory taken from when it was made: what others before have left behind does not count."""

    def __init__(self) -> None:
        gc.collect()
        self.before = 0
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()

    def figures(self) -> dict[str, float]:
        """Return the MiB at the peak, beyond what was there; nothing where there is no GPU."""
        if not torch.cuda.is_available():
            return {}
        return {"peak_mib": (torch.cuda.max_memory_allocated() - self.before) / 2**20}


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"


def processor() -> str:
    """Return what this machine's processor is called, and how many there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return f"{name}, {os.cpu_count()} cores"


@dataclass(frozen=True)
class OurStep:
    """Our step for a recipe on texts, and what says which rows it takes."""

    stepper: Stepper
    data: TrainingSet
    method: Recipe
    guidance: Guidance
    network: nn.Module


def our_step(
    examples: Examples,
    model: str,
    recipe: str,
    accelerator: Accelerator,
    *,
    capture: bool = True,
    record: bool = True,
    beside: OurStep | None = None,
    max_length: int = LENGTH,
) -> OurStep:
    """Return our step as `calmix train` makes it; with `beside`, from the tokens of that one."""
    torch.manual_seed(0)
    network, tokenizer = load_for_training(
        resolve(model), label_names=examples.label_names, choices=examples.kind == "choices"
    )
    network.to(accelerator.device).train()
    if beside is None:
        packed = encode(examples, tokenizer, max_length=usable_length(tokenizer, network.config, max_length))
        data = training_set(examples, packed).to(accelerator.device)
    else:
        data = beside.data
    method = choose(recipe)
    # Guided recipes need dynamics: any will do for their speed.
    scores = np.random.default_rng(0).normal(size=(2, len(examples), len(examples.label_names)))
    told = None if method.guide is None else Dynamics.from_logits(scores, examples.labels)
    guidance = Guidance(method, network, data, accelerator, dynamics=told)
    stepper = Stepper(
        network,
        data,
        method,
        accelerator,
        adamw(network.parameters(), lr=RATE, weight_decay=0.0),
        fill=fill_tokens(tokenizer),
        seed=0,
        clip=1.0,
        guidance=guidance if record else None,
        capture=capture,
    )
    return OurStep(stepper, data, method, guidance, network)


def trainer_rows(examples: Examples, tokenizer: Any) -> list[dict[str, Any]]:
    """Return texts and labels as the Trainer reads them."""
    second = examples.column("text_b") if examples.kind == "pair" else None
    encoded = tokenizer(examples.column("text"), second, truncation=True, max_length=LENGTH)
    return [
        {**{name: cells[i] for name, cells in encoded.items()}, "labels": int(label)}
        for i, label in enumerate(examples.labels)
    ]


def plain_steps(examples: Examples, model: str, *, batch_size: int, bf16: bool, workers: int = 0) -> Iterator[int]:
    """Train as a plain torch loop does, and yield how many rows each step had.

    A loader that pads to the longest text of a batch, autocast, cross-entropy, clipping, fused AdamW.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    network, tokenizer = load_for_training(resolve(model), label_names=examples.label_names)
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    rows = trainer_rows(examples, tokenizer)
    loader: Any = DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=DataCollatorWithPadding(tokenizer),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    while True:
        for batch in loader:
            inputs = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = network(**inputs).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            yield len(inputs["labels"])


class Clock(TrainerCallback):
    """Notes the time at the end of the warm-up and of each stretch of the Trainer's steps."""

    def __init__(self, warmup: int, steps: int) -> None:
        self.stretch = steps // STRETCHES
        self.marks = [warmup + i * self.stretch for i in range(STRETCHES + 1)]
        self.times: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step in self.marks:
            wait()
            self.times[state.global_step] = time.perf_counter()

    def rate(self, batch_size: int) -> float:
        """Return the median of the stretches' samples per second."""
        times = [self.times[mark] for mark in self.marks]
        return statistics.median(batch_size * self.stretch / (b - a) for a, b in pairwise(times))


def train_with_trainer(
    network: nn.Module,
    rows: Any,
    *,
    batch_size: int,
    steps: int,
    callbacks: Sequence[TrainerCallback],
    collator: Any = None,
    optimizers: tuple[Any, Any] = (None, None),
    **settings: Any,
) -> None:
    """Train so many steps with the Hugging Face Trainer, which writes and reports nothing."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch_size,
            max_steps=steps,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **settings,
        )
        Trainer(
            network,
            arguments,
            train_dataset=rows,
            data_collator=collator,
            optimizers=optimizers,
            callbacks=list(callbacks),
        ).train()
