"""From a table of labelled texts to a calibrated checkpoint and its figures, in one run folder."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list
from numpy.typing import NDArray
from torch import nn

from calmix.calibration import Temperature
from calmix.data import Examples, write_json, write_table, write_text
from calmix.mixing import Recipe, choose, fill_tokens
from calmix.models import Beside, encode, fold, identity, load_for_training, resolve, usable_length
from calmix.training.batches import training_set
from calmix.training.card import model_card
from calmix.training.correcting import guarded, save_whole
from calmix.training.evaluating import measure
from calmix.training.folder import config_hash, file_hash, locked, open_run
from calmix.training.loop import Progress, fit, predict_everywhere
from calmix.training.optimising import Schedule, adamw, check_hyper
from calmix.training.predictions import prediction_table
from calmix.training.preparing import ClassWeights, Source, class_weights_of, prepare_sets
from calmix.training.rehearsing import rehearse
from calmix.training.selecting import Selection
from calmix.training.stepping import Stepper

__all__ = ["Precision", "Run", "train"]

Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Run:
    """A finished run: where it is and what came out."""

    folder: Path
    metrics: dict[str, Any]

    @property
    def model(self) -> Path:
        """The calibrated checkpoint: `calmix.load` and transformers' `from_pretrained` both read it."""
        return self.folder / "model"


def train(
    train: Source,
    *,
    dev: Source | None = None,
    test: Source | None = None,
    ood: Mapping[str, Source] | None = None,
    model: str = "minilm",
    recipe: str | Recipe = "erm",
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    text: str | None = None,
    text_b: str | None = None,
    choices: str | None = None,
    label: str | None = None,
    id: str | None = None,
    votes: str | None = None,
    dev_fraction: float = 0.1,
    epochs: int = 3,
    batch_size: int = 32,
    lr: float = 5e-5,
    weight_decay: float = 0.0,
    warmup: float = 0.1,
    schedule: Schedule = "linear",
    clip: float = 1.0,
    accumulate: int = 1,
    max_length: int = 256,
    select: Selection = "nll-ts",
    patience: int = 0,
    class_weights: ClassWeights | None = None,
    seed: int = 0,
    bins: int = 15,
    guarantee: float | None = None,
    precision: Precision = "auto",
    gradient_checkpointing: bool = False,
    checkpoint_minutes: float = 10.0,
    checkpoint_epochs: int = 0,
    track: tuple[str, ...] = (),
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Run:
    """Fine-tune a classifier, fit its temperature on dev data, fold it into the weights, and measure it.

    Args:
        train: a file, a hub data set's name, or `Examples`.
        dev: data to choose the epoch and the temperature by; without it a share of `train` is split off.
        test: data to judge by; looked at once, at the end.
        ood: out-of-domain data to judge by, by name.
        model: a folder, a hub name, or `minilm`.
        recipe: the training method: a name, `file.py:function`, or a `Recipe`.
        options: the recipe's options.
        out: the run folder; an unfinished run of the same settings there is continued.
        text: the column with the text; likewise `text_b`, `choices`, `label` and `id`.
        text_b: the column with the second text of a pair.
        choices: the column with the choices of multiple-choice data.
        label: the column with the label.
        id: the column with a unique id.
        votes: a column of label distributions, such as annotators' votes: used as soft targets.
        dev_fraction: the share split off as dev data.
        epochs: passes over the training data.
        batch_size: samples per update, over all processes and accumulated parts.
        lr: peak learning rate. The papers: 1e-5 or 2e-5 for BERT- and RoBERTa-base.
        weight_decay: AdamW's, not applied to biases and norms.
        warmup: share of the steps over which the learning rate rises.
        schedule: what it does afterwards.
        clip: largest gradient norm; 0 is no limit.
        accumulate: parts a batch is cut into, to save memory.
        max_length: tokens per text (or pair) at most; longer ones are cut and counted.
        select: the epoch that is kept: by dev NLL after temperature, NLL, accuracy, MCC, or the last.
        patience: stop after this many epochs without a better one; 0 never does.
        class_weights: `balanced`, or weights by label name.
        seed: decides everything random.
        bins: of the calibration errors.
        guarantee: an accuracy to hold among accepted predictions, and the level of prediction sets. Half of the
            dev data is then kept from choosing anything, and used to find the threshold and the sets.
        precision: of the arithmetic; `auto` is bf16 on GPUs that have it.
        gradient_checkpointing: recompute activations instead of keeping them: less memory, a third slower.
        checkpoint_minutes: save the state of the run this often.
        checkpoint_epochs: and after every so many epochs; 0 does not.
        track: `tensorboard`, `wandb` or another of accelerate's trackers.
        dry_run: train a few steps only, write nothing, and return the estimated steps, seconds and memory.
        on_progress: called about once a second.
        on_note: called with each thing the user should know.
    """
    method = recipe if isinstance(recipe, Recipe) else choose(recipe, options)
    hyper: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "weight_decay": weight_decay,
        "warmup": warmup,
        "schedule": schedule,
        "clip": clip,
        "accumulate": accumulate,
        "select": select,
        "patience": patience,
        "seed": seed,
    }
    check_hyper({**hyper, "max_length": max_length, "bins": bins, "dev_fraction": dev_fraction, "guarantee": guarantee})
    columns = {"text": text, "text_b": text_b, "choices": choices, "label": label, "id": id, "votes": votes}
    sets = prepare_sets(
        train,
        dev=dev,
        test=test,
        ood=ood or {},
        guard=guarantee is not None,
        dev_fraction=dev_fraction,
        seed=seed,
        columns=columns,
    )
    if method.prepare is not None:
        sets = replace(sets, train=method.prepare(sets.train))
    weights = class_weights_of(sets.train, class_weights)
    config = {
        "recipe": _recipe_name(recipe),
        "options": dict(options or {}),
        "model": model,
        "model_hash": identity(resolve(model)),
        **hyper,
        "max_length": max_length,
        "bins": bins,
        "guarantee": guarantee,
        "class_weights": None if weights is None else weights.tolist(),
        "gradient_checkpointing": gradient_checkpointing,
        "data": {name: examples.digest() for name, examples in sets.named().items()},
    }
    folder = Path(out) if out is not None else Path("runs") / f"{config['recipe']}-{config_hash(config)}"
    main = PartialState().is_main_process
    with locked(folder) if main and not dry_run else nullcontext():
        decided: dict[str, Any] = {"precision": _precision(precision), "threads": torch.get_num_threads()}
        if not dry_run:
            decided = _from_main(open_run(folder, config, decided) if main else {})
        torch.set_num_threads(decided["threads"])
        accelerator = _accelerator(decided["precision"], () if dry_run else track, folder, config)
        torch.manual_seed(seed)
        network, tokenizer = load_for_training(
            resolve(model), label_names=sets.train.label_names, choices=sets.train.kind == "choices"
        )
        # Wherever the checkpoint goes, texts are cut where they were cut in training.
        tokenizer.model_max_length = limit = usable_length(tokenizer, network.config, max_length)
        if gradient_checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        packed = {name: encode(examples, tokenizer, max_length=limit) for name, examples in sets.named().items()}
        notes = sets.notes + [
            f"{name}: {p.truncated} of {len(p)} texts are longer than {limit} tokens and were cut (--max-length)"
            for name, p in packed.items()
            if p.truncated
        ]
        if on_note is not None and main:
            for note in notes:
                on_note(note)
        data, fill = training_set(sets.train, packed["train"], weights), fill_tokens(tokenizer)
        rows = {name: len(examples) for name, examples in sets.named().items()}
        if dry_run:
            optimizer = adamw(network.to(accelerator.device), lr=lr, weight_decay=weight_decay)
            data = data.to(accelerator.device)
            stepper = Stepper(network, data, method, accelerator, optimizer, fill=fill, seed=seed, clip=clip)
            cost = rehearse(stepper, epochs=epochs, batch_size=batch_size, accumulate=accumulate, seed=seed)
            return Run(folder, {"dry_run": True, "rows": rows, "labels": sets.train.label_names, "notes": notes} | cost)
        done = fit(
            network,
            data,
            method,
            accelerator=accelerator,
            fill=fill,
            dev=(packed["dev"], sets.dev.labels),
            out=folder,
            checkpoint_minutes=checkpoint_minutes,
            checkpoint_epochs=checkpoint_epochs,
            on_progress=on_progress,
            **hyper,
        )
        judged = {name: examples for name, examples in sets.named().items() if name != "train"}
        logits = {name: predict_everywhere(network, packed[name], accelerator) for name in judged}
        accelerator.end_training()
        if not main:
            return Run(folder, {})
        metrics = _finish(folder, network, tokenizer, judged, logits, config)
        metrics |= {
            "best_epoch": done.best_epoch,
            "epochs": done.history,
            "seconds": round(done.seconds, 3),
            "rows": rows,
            "notes": notes,
        }
        write_text(folder / "model" / "README.md", model_card(config, metrics, sets.train.label_names))
        # Written last: a run with its figures is a finished run.
        write_json(folder / "metrics.json", metrics)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return Run(folder, metrics)


def _finish(
    folder: Path,
    network: nn.Module,
    tokenizer: Any,
    judged: Mapping[str, Examples],
    logits: Mapping[str, NDArray[np.float32]],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Fit the temperature on dev, fold it, and write the model and its predictions; return the figures."""
    scaled = Temperature.fit(logits["dev"], judged["dev"].labels)
    figures: dict[str, Any] = {}
    names = judged["dev"].label_names
    for name, examples in judged.items():
        raw, probs = np.asarray(Temperature(1.0)(logits[name])), np.asarray(scaled(logits[name]))
        figures[name] = {
            "before": measure(raw, examples.labels, bins=config["bins"]),
            "after": measure(probs, examples.labels, bins=config["bins"]),
        }
        table = prediction_table(examples, probs, label_names=names, logits=logits[name])
        write_table(table, folder / f"predictions-{name}.parquet")
    found: dict[str, Any] = {"temperature": scaled.temperature, "splits": figures}
    beside = Beside()
    if config["guarantee"] is not None:
        beside = guarded(np.asarray(scaled(logits["guard"])), judged["guard"].labels, config["guarantee"])
        found["guarantee"] = {key: value.to_json() for key, value in vars(beside).items() if value is not None}
    fold(network, scaled.temperature)
    save_whole(network, tokenizer, beside, folder / "model")
    return found


def _accelerator(precision: str, track: tuple[str, ...], folder: Path, config: Mapping[str, Any]) -> Accelerator:
    # Its state is global and keeps the precision of whatever ran before in this process.
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        mixed_precision="bf16" if precision == "bf16" else "no",
        log_with=list(track) or None,
        project_dir=folder,
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    if track:
        plain = {name: value for name, value in config.items() if isinstance(value, int | float | str)}
        accelerator.init_trackers("calmix", config=plain)
    return accelerator


def _precision(asked: Precision) -> str:
    if asked == "auto":
        return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "fp32"
    return asked


def _from_main(value: dict[str, Any]) -> dict[str, Any]:
    held = [value]
    broadcast_object_list(held)
    return held[0]


def _recipe_name(recipe: str | Recipe) -> str:
    """Return what stands for the recipe in a run's identity: a file's content counts, not its name alone."""
    if isinstance(recipe, Recipe):
        return f"custom-{getattr(recipe.loss, '__qualname__', 'loss').split('.')[0]}"
    file, _, function = recipe.rpartition(":")
    if file.endswith(".py"):
        return f"{Path(file).stem}.{function}-{file_hash(Path(file))[:8]}"
    return recipe.replace(":", ".")
