"""Runs to choose the default from: what each way to train says about dev, test and other domains, kept to be compared.

    python benchmarks/default_runs.py --model minilm --data DATA --minutes 5 --out OUT/all
    python benchmarks/default_choice.py OUT

Several seeds are trained side by side. Of every run the weights themselves and several averages of them along the run
are looked at, each at the epoch that is best by dev NLL after temperature, as `calmix train` chooses it. Kept are
logits in float16, and how far each sample lies from the training data in four ways: everything that is done to
predictions afterwards can then be tried without a GPU. Other domains are represented by their dev sets where they have
any: their test sets are for judging the choice. Beside dev there are spoilt copies of it (tokens masked,
replaced, shuffled; pairs of texts mixed), for corrections that must not look at another domain.

Ways to train come in the order of what is wanted most; when the minutes are over, the rest is left out, and said.
"""

import argparse
import copy
import gc
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.calibration import Temperature, nll
from calmix.data.gathering import gather, sampled
from calmix.data.tasks import Task, builtin_tasks, parse_task
from calmix.mixing import Recipe, Step, choose, fill_tokens
from calmix.mixing.levels import mixed_logits
from calmix.models import Packed, anatomy, encode, head_input, load_for_training, pooled, resolve, usable_length
from calmix.training.averaging import Averaged
from calmix.training.batches import TrainingSet, epoch_steps_together, training_set
from calmix.training.guiding import Guidance
from calmix.training.optimising import adamw, learning_rate
from calmix.training.stepping import Stepper
from calmix.training.together import SideBySide

EPOCHS, BATCH, LR, WARMUP = 3, 32, 5e-5, 0.1
REFERENCE = 4000
SPOILT = ("mask", "replace", "shuffle")
SHARES = (0.25,)
PLAIN_SHARES = (0.1, 0.25, 0.5)
# Distances are kept in eighths of dev's standard deviation from dev's mean.
PER_DEVIATION = 8

TASKS = ("snli", "qqp", "goemotions", "yelp", "trec", "swag", "cola", "epitome", "ag-news", "rte")

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("erm", {}),
    "own": ("auto", {"own": 0.5}),
    "mix": ("auto", {"alpha": 1.0}),
    "mix-own": ("auto", {"alpha": 1.0, "own": 0.3}),
    "mix-erl": ("auto", {"alpha": 0.4, "entropy": 0.1}),
    "halves": ("auto", {"alpha": 1.0, "halves": True}),
    "doubt": ("auto", {"doubt": 0.1, "distrust": 0.25}),
    "input-mixup": ("input-mixup", {}),
    "erl": ("erl", {}),
    "smoothing": ("label-smoothing", {}),
}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task with everything tokenised and on the device."""

    labels: dict[str, NDArray[np.int64]]
    data: TrainingSet
    judged: dict[str, Packed]
    reference: NDArray[np.int64]
    fill: Mapping[str, int]
    label_names: tuple[str, ...]
    choices: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain-seeds", type=int, default=5, help="of erm, for an ensemble")
    parser.add_argument("--rows", type=int, default=10_000, help="training rows at most")
    parser.add_argument("--judged", type=int, default=1500, help="rows of test and other domains at most")
    parser.add_argument("--held", type=int, default=1000, help="dev rows at most")
    parser.add_argument("--spoilt", type=int, default=400, help="rows of each spoilt copy of dev at most")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    began = time.monotonic()
    asked.out.mkdir(parents=True, exist_ok=True)
    taken: dict[str, float] = {}
    log: dict[str, Any] = {"settings": {key: str(value) for key, value in vars(asked).items()}, "runs": [], "left": []}
    for way in asked.ways.split(","):
        for task in asked.tasks.split(","):
            left = 60 * asked.minutes - (time.monotonic() - began)
            # As long as the longest way took for this task before, and a little more.
            if left < 1.1 * taken.get(task, 5.0):
                log["left"].append([way, task])
                continue
            start = time.monotonic()
            prepared = prepare(asked.model, task, asked.data, asked.rows, asked.judged, asked.held, asked.spoilt)
            ready = time.monotonic()
            seeds = range(asked.plain_seeds if way == "erm" else asked.seeds)
            arrays, facts = run(prepared, asked.model, way, seeds)
            np.savez_compressed(asked.out / f"{way}.{task}.npz", **arrays)  # type: ignore[arg-type]
            labels = {f"labels/{name}": values for name, values in prepared.labels.items()}
            np.savez_compressed(asked.out / f"labels.{task}.npz", **labels)  # type: ignore[arg-type]
            seconds = time.monotonic() - start
            taken[task] = max(taken.get(task, 0.0), time.monotonic() - ready)
            log["runs"].append({"way": way, "task": task, "seeds": len(seeds), "seconds": round(seconds, 2), **facts})
            (asked.out / "log.json").write_text(json.dumps(log, indent=1), encoding="utf-8")
            print(f"{time.monotonic() - began:6.1f} s  {way} on {task}: {seconds:.1f} s {facts}", flush=True)
            gc.collect()
    (asked.out / "log.json").write_text(json.dumps(log, indent=1), encoding="utf-8")
    print(f"left out: {log['left'] or 'nothing'}")


@cache
def prepare(model: str, task: str, folder: Path, rows: int, judged: int, held: int, spoilt: int) -> Prepared:
    sets = gather(chosen_by(task, folder), folder)
    train, dev = sampled(sets.train, rows, 0), sampled(sets.dev, held, 0)
    others = {"dev": dev, "test": sampled(sets.test, judged, 0)}
    others |= {f"ood-{name}": sampled(examples, judged, 0) for name, examples in sets.ood.items()}
    choices = train.kind == "choices"
    network, tokenizer = loaded(model, train.label_names, choices, 0)
    limit = usable_length(tokenizer, network.config, 256)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    packed = {name: encode(examples, tokenizer, max_length=limit).to(device) for name, examples in others.items()}
    few = sampled(dev, spoilt, 1)
    plain, labels = encode(few, tokenizer, max_length=limit), {name: each.labels for name, each in others.items()}
    for kind in SPOILT:
        packed[kind], labels[kind] = spoil(plain, kind, tokenizer).to(device), few.labels
    packed["mixed"], labels["mixed"] = plain.to(device), few.labels
    data = training_set(train, encode(train, tokenizer, max_length=limit)).to(device)
    reference = np.sort(np.random.default_rng(0).permutation(len(train))[: REFERENCE // (2 if choices else 1)])
    labels["train"] = train.labels
    return Prepared(labels, data, packed, reference, fill_tokens(tokenizer), train.label_names, choices)


def chosen_by(name: str, folder: Path) -> Task:
    """Return a task with dev sets of the other domains instead of test sets, wherever there are any."""
    task = parse_task(name, builtin_tasks()[name], name)
    ood = {}
    for domain, part in task.ood.items():
        held = part.file.replace("/test", "/dev")
        there = any(folder.joinpath(Path(held).parent).glob(f"{Path(held).name}.*"))
        ood[domain] = replace(part, file=held if there else part.file)
    return replace(task, ood=ood)


@cache
def loaded(model: str, names: tuple[str, ...], choices: bool, seed: int) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    return load_for_training(resolve(model), label_names=names, choices=choices)


def spoil(packed: Packed, kind: str, tokenizer: Any, share: float = 0.3) -> Packed:
    """Return texts with three in ten tokens masked or replaced by others of the same texts, or all of them shuffled."""
    rng, ids = np.random.default_rng(2), packed.ids.numpy().copy()
    free = np.flatnonzero(~np.isin(ids, tokenizer.all_special_ids))
    if kind == "shuffle":
        text = np.searchsorted(packed.starts.numpy(), free, side="right")
        segment = np.zeros(len(ids), np.int64) if packed.types is None else packed.types.numpy()
        group = 2 * text + segment[free]
        order = np.lexsort((rng.random(len(free)), group))
        ids[free] = ids[free[order]]
    else:
        hit = free[rng.random(len(free)) < share]
        mask = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
        ids[hit] = mask if kind == "mask" else rng.permutation(ids[free])[: len(hit)]
    return replace(packed, ids=torch.from_numpy(ids))


def run(task: Prepared, name: str, way: str, seeds: Sequence[int]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays of all seeds trained in one way, and how long that took."""
    device = task.data.labels.device
    accelerator = Accelerator(mixed_precision="bf16" if device.type == "cuda" else "no", cpu=device.type == "cpu")
    recipe = choose(*WAYS[way])
    models = [copy.deepcopy(loaded(name, task.label_names, task.choices, seed)[0]).to(device) for seed in seeds]
    start = time.monotonic()
    kept = train(models, task, recipe, accelerator, seeds, PLAIN_SHARES if way == "erm" else SHARES)
    if device.type == "cuda":
        torch.cuda.synchronize()
    trained = time.monotonic()
    arrays: dict[str, NDArray[Any]] = {}
    for variant, states in kept.items():
        for seed, model, (epoch, state) in zip(seeds, models, states, strict=True):
            model.load_state_dict(state)
            arrays |= {f"{seed}/{variant}/{what}": values for what, values in collected(model, task).items()}
            arrays[f"{seed}/{variant}/epoch"] = np.array(epoch)
    done = time.monotonic()
    return arrays, {"training": round(trained - start, 2), "looking": round(done - trained, 2)}


def train(
    models: Sequence[nn.Module],
    task: Prepared,
    recipe: Recipe,
    accelerator: Accelerator,
    seeds: Sequence[int],
    shares: Sequence[float],
) -> dict[str, list[tuple[int, dict[str, Tensor]]]]:
    """Train all models side by side; return the best epoch, and its state, of the weights and of each average."""
    each = [
        Guidance(recipe, model, task.data, accelerator, online=True, seed=seed)
        for model, seed in zip(models, seeds, strict=True)
    ]
    optimizers = [adamw(model.parameters(), lr=LR, weight_decay=0.0) for model in models]
    guidance: Any = SideBySide(each)
    stepper = Stepper(
        models[0],
        task.data,
        recipe,
        accelerator,
        optimizers[0],
        fill=task.fill,
        seed=seeds[0],
        clip=1.0,
        guidance=guidance,
        beside=list(zip(models[1:], optimizers[1:], strict=True)),
    )
    layout = partial(epoch_steps_together, task.data, recipe, batch_size=BATCH, seeds=seeds)
    per_epoch = sum(1 for _ in layout(0, signals=[one.columns for one in each]))
    steps, number = EPOCHS * per_epoch, 0
    averages = {"raw": Averaged(models, 0.0, steps)} | {f"{s:g}": Averaged(models, s, steps) for s in shares}
    best: dict[str, list[tuple[float, int, dict[str, Tensor]]]] = {name: [] for name in averages}
    for epoch in range(EPOCHS):
        guidance.begin_epoch(epoch)
        models[0].train()
        batches = list(layout(epoch, signals=[one.columns for one in each]))
        for place, parts in enumerate(batches):
            position = (epoch + place / len(batches)) * per_epoch
            stepper.step(parts, number, learning_rate(position, steps=steps, peak=LR, warmup=WARMUP, schedule="linear"))
            number += 1
            for averaged in averages.values():
                averaged.update()
        guidance.end_epoch()
        stepper.restart()
        for name, averaged in averages.items():
            with averaged.in_place():
                worths = [worth(model, task) for model in models]
                states = [{key: value.clone() for key, value in model.state_dict().items()} for model in models]
            found = [(w, epoch + 1, state) for w, state in zip(worths, states, strict=True)]
            best[name] = [max(pair, key=lambda one: one[0]) for pair in zip(best[name] or found, found, strict=True)]
    return {name: [(epoch, state) for _, epoch, state in found] for name, found in best.items()}


def worth(model: nn.Module, task: Prepared) -> float:
    logits = look(model, task.judged["dev"], layer=None)["logits"].cpu().numpy()
    labels = task.labels["dev"]
    return -nll(Temperature.fit(logits, labels)(logits), labels)


def collected(model: nn.Module, task: Prepared) -> dict[str, NDArray[Any]]:
    """Return what a model says about each set, and how far its samples are from the training data."""
    layer = len(anatomy(model).layers) // 2
    near = look(model, task.data.packed, layer=layer, rows=task.reference)
    labels = None if task.choices else task.data.labels[torch.from_numpy(task.reference).to(task.data.labels.device)]
    found: dict[str, NDArray[Any]] = {}
    usual: tuple[Tensor, Tensor] | None = None
    for name, packed in task.judged.items():
        seen = look(model, packed, layer=layer, mixing=task.fill if name == "mixed" else None)
        found[f"{name}/logits"] = seen["logits"].half().cpu().numpy()
        far = distances(seen, near, labels)
        usual = usual or (far.mean(0), far.std(0))  # dev comes first
        steps = (PER_DEVIATION * (far - usual[0]) / usual[1]).round()
        found[f"{name}/distances"] = steps.clamp(-127, 127).to(torch.int8).cpu().numpy()
        if name == "mixed":
            found["mixed/partner"] = seen["partner"].short().cpu().numpy()
            found["mixed/weight"] = seen["weight"].half().cpu().numpy()
    return found


def distances(seen: Mapping[str, Tensor], near: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:
    """Return four distances of each row [rows, 4]: to neighbours and Mahalanobis, at the head and in the middle.

    A row of several choices is as far as they are on average.
    """
    columns = []
    for part in ("head", "middle"):
        x, reference = seen[part], near[part].flatten(0, 1)
        rows, choices, width = x.shape
        flat = x.reshape(-1, width)
        unit, units = (nn.functional.normalize(t, dim=-1) for t in (flat, reference))
        nearest = (unit @ units.T).topk(min(10, len(units)), dim=1).values
        neighbours = (2 - 2 * nearest.clamp(max=1)).clamp_min(0).sqrt().mean(1)
        grouped = part == "head" and labels is not None
        means = (
            torch.stack([reference[labels == k].mean(0) for k in torch.unique(labels)])
            if grouped
            else reference.mean(0)[None]
        )
        centred = reference - (means[torch.unique(labels, return_inverse=True)[1]] if grouped else means)
        spread = centred.T.double() @ centred.double() / len(centred)
        spread += 1e-3 * spread.diagonal().mean() * torch.eye(width, device=spread.device, dtype=spread.dtype)
        whiten = torch.linalg.cholesky(torch.linalg.inv(spread)).float()
        far = torch.cdist(flat @ whiten, means @ whiten).min(1).values
        columns += [neighbours.view(rows, choices).mean(1), far.view(rows, choices).mean(1)]
    return torch.stack(columns, 1)


@torch.inference_mode()
def look(
    model: nn.Module,
    packed: Packed,
    *,
    layer: int | None,
    rows: NDArray[np.int64] | None = None,
    mixing: Mapping[str, int] | None = None,
) -> dict[str, Tensor]:
    """Return the logits of each sample, and what its head and a middle layer hold of it [samples, choices, width]."""
    model.eval()
    parts, device = anatomy(model), packed.ids.device
    asked = np.arange(len(packed)) if rows is None else rows
    kept: dict[str, list[Tensor]] = {}
    places: list[Tensor] = []
    middle: list[Tensor] = []
    handle = None
    if layer is not None:
        handle = model.get_submodule(parts.layers[layer - 1]).register_forward_hook(
            lambda _m, _a, output: middle.append(output[0] if isinstance(output, tuple) else output)
        )
    generator = torch.Generator(device).manual_seed(0)
    with head_input(model, parts) if layer is not None else nullcontext([]) as heads:
        for batch in batches_of(packed, asked):
            there = torch.from_numpy(asked[batch]).to(device)
            choices = None if packed.counts is None else int(packed.counts[asked[batch[0]]])
            inputs = packed.batch(there, width=packed.width(asked[batch]), choices=choices)
            seen: dict[str, Tensor] = {}
            if mixing is None:
                seen["logits"] = model(**inputs).logits.float()  # type: ignore[operator]
            else:
                step = Step(model, inputs, torch.zeros(len(there), 1, device=device), generator, fill=mixing)
                partner = step.permutation()
                weight = 0.5 + 0.5 * torch.rand(len(there), generator=generator, device=device)
                seen["logits"] = mixed_logits(step, partner, weight, level=0)
                seen |= {"partner": there[partner], "weight": weight}
            if layer is not None:
                shape = (len(there), choices or 1, -1)
                mask = inputs["attention_mask"].flatten(0, -2)[..., None].float()
                held = middle.pop().float()
                seen["head"] = pooled(heads.pop(), inputs, model.config.pad_token_id).float().reshape(shape)  # type: ignore[union-attr, arg-type]
                seen["middle"] = ((held * mask).sum(1) / mask.sum(1)).reshape(shape)
            for name, values in seen.items():
                kept.setdefault(name, []).append(values)
            places.append(torch.from_numpy(batch).to(device))
    if handle is not None:
        handle.remove()
    order = torch.cat(places).argsort()
    return {name: torch.cat(values)[order] for name, values in kept.items()}


def batches_of(packed: Packed, asked: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield places in `asked` that make a batch: of like length, as many as fit."""
    most = 65_536 if packed.ids.device.type == "cuda" else 2048
    order = np.argsort(-packed.host_lengths[asked], kind="stable")
    start = 0
    while start < len(order):
        row = asked[order[start]]
        width = packed.width(asked[order[start : start + 1]]) * (
            1 if packed.counts is None else int(packed.counts[row])
        )
        stop = start + max(2, most // width)
        yield order[start:stop]
        start = stop


if __name__ == "__main__":
    main()
