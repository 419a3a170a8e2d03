"""Training speed on images, side by side in one run: plain torch loops, the Hugging Face Trainer, and each recipe.

    python benchmarks/images.py --model resnet18 --batch-size 128

All train the same network with the same optimiser in the same precision, on images that are moved and mirrored.
Without --data, images of noise: their content does not matter for speed. Prints images per second after a warm-up
(medians of several stretches of steps), ratios, and what input mixup costs.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import STRETCHES, Clock, device_name, train_with_trainer, wait
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from calmix.data import Examples, read_examples
from calmix.mixing import choose
from calmix.models import Pixels, Preparation, load_for_images, measured, pack_images, preparation_for
from calmix.training.batches import epoch_steps, training_set
from calmix.training.guiding import Guidance
from calmix.training.launching import placed, precision_for
from calmix.training.optimising import optimizer_for
from calmix.training.stepping import Stepper

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
HALF = precision_for("auto") == "bf16"


def noise(count: int, side: int, classes: int) -> Examples:
    rng = np.random.default_rng(0)
    # Grey files need no Pillow; they are read as three channels all the same.
    images = list(rng.integers(0, 256, (count, side, side)).astype(np.uint8))
    return Examples.from_images(images, [f"{k:03}" for k in rng.integers(0, classes, count)])


def timed(steps: Iterator[int], *, warmup: int, count: int) -> float:
    """Return the rows per second of steps that yield how many rows they took."""
    for _ in range(warmup):
        next(steps)
    wait()
    rates = []
    for _ in range(STRETCHES):
        start = time.perf_counter()
        rows = sum(next(steps) for _ in range(count // STRETCHES))
        wait()
        rates.append(rows / (time.perf_counter() - start))
    return statistics.median(rates)


def network(name: str, examples: Examples, how: Preparation) -> nn.Module:
    torch.manual_seed(0)
    model = load_for_images(name, label_names=examples.label_names, how=how).train()
    return model.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def ours(
    examples: Examples,
    pixels: Pixels,
    how: Preparation,
    name: str,
    recipe: str,
    *,
    batch_size: int,
    warmup: int,
    steps: int,
    capture: bool = True,
    record: bool = True,
) -> float:
    """Return images per second of our loop's step."""
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision="bf16" if HALF else "no", cpu=not CUDA)
    torch.manual_seed(0)
    model = placed(load_for_images(name, label_names=examples.label_names, how=how), accelerator).train()
    data = training_set(examples, pixels, augment="crop-flip").to(accelerator.device)
    method = choose(recipe)
    optimizer = optimizer_for("sgd", model.parameters(), lr=0.1, weight_decay=5e-4)
    guidance = Guidance(method, model, data, accelerator) if record else None
    stepper = Stepper(
        model, data, method, accelerator, optimizer, fill={}, seed=0, clip=0.0, guidance=guidance, capture=capture
    )

    def taken() -> Iterator[int]:
        number = 0
        for epoch in range(10**6):
            for parts in epoch_steps(data, method, epoch, batch_size=batch_size, accumulate=1, seed=0, rank=0, world=1):
                stepper.step(parts, number, 0.1)
                number += 1
                yield parts[-1].batch

    kinds = method.variants(model)
    rate = timed(taken(), warmup=warmup * (1 if kinds == 1 else 3), count=steps)
    stepper.read(None)
    return rate


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)


def trained(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[int]:
    """Train as a plain loop does: autocast, cross-entropy, an update for each batch."""
    optimizer, loss = sgd(model), nn.CrossEntropyLoss()
    for inputs, labels in batches:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=HALF):
            value = loss(model(pixel_values=inputs).logits, labels)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        yield len(labels)


def on_device(examples: Examples, pixels: Pixels, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches cut and augmented on the device, where all pixels are: the fastest plain loop."""
    there, labels = pixels.to(DEVICE), torch.from_numpy(examples.labels).to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(0)
    while True:
        for rows in torch.randperm(len(labels), device=DEVICE).split(batch_size):
            yield there.augmented(rows, "crop-flip", generator)["pixel_values"], labels[rows]


class Augmented(Dataset[dict[str, Any]]):
    """Images as a loader's workers make them: padded, cut, mirrored and normalised one by one."""

    def __init__(self, examples: Examples, pixels: Pixels) -> None:
        self.data, self.labels = pixels.data, examples.labels
        self.shift, self.scale = pixels.shift, pixels.scale

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        image = self.data[row]
        pad = image.shape[0] // 8
        wide = nn.functional.pad(image, (0, 0, pad, pad, pad, pad))
        y, x = (int(torch.randint(2 * pad + 1, ())) for _ in range(2))
        cut = wide[y : y + image.shape[0], x : x + image.shape[1]]
        cut = cut.flip(1) if torch.rand(()) < 0.5 else cut
        return {
            "pixel_values": ((cut.float() - self.shift) * self.scale).permute(2, 0, 1),
            "labels": int(self.labels[row]),
        }


def loaded(dataset: Augmented, batch_size: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(
        dataset, batch_size, shuffle=True, num_workers=workers, pin_memory=CUDA, persistent_workers=workers > 0
    )
    while True:
        for batch in loader:
            inputs = batch["pixel_values"].to(DEVICE, non_blocking=True)
            yield inputs.contiguous(memory_format=torch.channels_last), batch["labels"].to(DEVICE, non_blocking=True)


def huggingface(
    model: nn.Module, dataset: Augmented, *, batch_size: int, warmup: int, steps: int, workers: int
) -> float:
    """Return images per second of the Hugging Face Trainer."""
    AcceleratorState._reset_state()
    clock, optimizer = Clock(warmup, steps), sgd(model)
    train_with_trainer(
        model,
        dataset,
        batch_size=batch_size,
        steps=warmup + steps,
        callbacks=[clock],
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        bf16=HALF,
        use_cpu=not CUDA,
        max_grad_norm=0.0,
        dataloader_num_workers=workers,
        remove_unused_columns=False,
    )
    return clock.rate(batch_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a folder of images; without it, noise")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--recipes", default="erm,input-mixup,label-smoothing,erl,feature-mixup,manifold-mixup")
    parser.add_argument("--json")
    options = parser.parse_args()
    examples = read_examples(options.data) if options.data else noise(options.images, options.side, 10)
    how, _ = preparation_for(options.model, examples)
    if how.channels == 1 and not options.data:
        how = Preparation(how.height, how.width, (0.0,) * 3, (1.0,) * 3)
    pixels, how = measured(pack_images(examples, how), how)
    common = {"batch_size": options.batch_size, "warmup": options.warmup, "steps": options.steps}
    device = device_name()
    print(
        f"{device}, torch {torch.__version__}, {'bf16' if HALF else 'fp32'}, {options.model}, batch "
        f"{options.batch_size}, {len(examples)} images of {how.width} × {how.height} pixels"
    )
    found: dict[str, Any] = {
        "device": device,
        "torch": torch.__version__,
        "precision": "bf16" if HALF else "fp32",
        "model": options.model,
        "batch_size": options.batch_size,
        "side": how.width,
        "images_per_second": {},
    }
    rates = found["images_per_second"]

    def show(name: str, measure: Callable[[], float]) -> float:
        rates[name] = rate = measure()
        base = next(iter(rates.values()))
        print(f"{name:44} {rate:10,.0f} images/s  {rate / base:6.2f}×", flush=True)
        return rate

    dataset = Augmented(examples, pixels)

    def plain(batches: Iterator[tuple[Tensor, Tensor]]) -> float:
        steps = trained(network(options.model, examples, how), batches)
        return timed(steps, warmup=options.warmup, count=options.steps)

    show(
        "Hugging Face Trainer",
        lambda: huggingface(network(options.model, examples, how), dataset, workers=options.workers, **common),
    )
    show("torch loop, DataLoader", lambda: plain(loaded(dataset, options.batch_size, options.workers)))
    show("torch loop, pixels on the device", lambda: plain(on_device(examples, pixels, options.batch_size)))

    def recipe(name: str, **switches: bool) -> Callable[[], float]:
        return lambda: ours(examples, pixels, how, options.model, name, **common, **switches)

    show("calmix erm, not captured, nothing recorded", recipe("erm", capture=False, record=False))
    show("calmix erm, nothing recorded", recipe("erm", record=False))
    for name in options.recipes.split(","):
        show(f"calmix {name}", recipe(name))
    if {"calmix erm", "calmix input-mixup"} <= rates.keys():
        found["input_mixup_costs"] = rates["calmix erm"] / rates["calmix input-mixup"]
        found["input_mixup_costs_unrecorded"] = rates["calmix erm, nothing recorded"] / rates["calmix input-mixup"]
        print(
            f"input mixup takes {found['input_mixup_costs']:.3f}× the time of plain training, "
            f"{found['input_mixup_costs_unrecorded']:.3f}× of plain training that records nothing"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
