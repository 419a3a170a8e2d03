"""From labelled texts or images to a calibrated checkpoint and its figures, in one run folder."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from calmix.data.reusing import reused
from calmix.errors import InputError
from calmix.mixing import Recipe, choose, verify_mixing
from calmix.models import Augment, identity, resolve
from calmix.training.batches import training_set
from calmix.training.cutting import cut_notes
from calmix.training.defaults import with_defaults
from calmix.training.finishing import finish
from calmix.training.folder import abandon, begin_run, config_hash, find_run, locked
from calmix.training.guiding import Guidance, Record, partner_notes, record_notes
from calmix.training.halves import Ready, Run, alone
from calmix.training.keeping import Fit
from calmix.training.launching import (
    Precision,
    accelerator_for,
    from_main,
    named_trackers,
    precision_for,
    start_trackers,
    threads_here,
)
from calmix.training.loop import Progress, predict_everywhere
from calmix.training.mapping import Known, check_guided, dropped_notes, known_dynamics, map_notes, write_map
from calmix.training.naming import recipe_name
from calmix.training.networks import load_network
from calmix.training.optimising import OptimizerName, Schedule, check_hyper
from calmix.training.preparing import ClassWeights, Sets, Source, class_weights_of, prepare_sets
from calmix.training.promises import promise_notes
from calmix.training.rehearsing import rehearse_run
from calmix.training.selecting import Selection
from calmix.training.teachers import Teacher, lesson_of, load_teachers, rehearsed_lesson

__all__ = ["stages", "train"]


def stages(
    train: Source,
    *,
    dev: Source | None = None,
    test: Source | None = None,
    ood: Mapping[str, Source] | None = None,
    model: str | Path = "minilm",
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
    merge_labels: bool | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: OptimizerName | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    warmup: float | None = None,
    schedule: Schedule | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    max_length: int = 256,
    image_size: int | None = None,
    augment: Augment = "crop-flip",
    stream: bool | None = None,
    select: Selection = "nll-ts",
    patience: int = 0,
    average: float | None = None,
    class_weights: ClassWeights | None = None,
    seed: int = 0,
    bins: int = 15,
    guarantee: float | None = None,
    dynamics: str | Path | None = None,
    online: bool = False,
    record: Record = "training",
    teacher: Teacher | Sequence[Teacher] | None = None,
    cache_teacher: bool = True,
    scaled_teacher: bool = True,
    precision: Precision = "auto",
    gradient_checkpointing: bool = False,
    checkpoint_minutes: float = 10.0,
    checkpoint_epochs: int = 0,
    track: str | Sequence[str] = (),
    lean: bool = False,
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Generator[Ready, Fit, Run]:
    """Fine-tune a classifier, fit its temperature on dev data, fold it into the weights, and measure it.

    What is None has a default that suits the model: the first one named is for pretrained weights, the second for
    networks that begin with random ones.

    Args:
        train: a file, a folder of images, a hub data set's name, or `Examples`.
        dev: data to choose the epoch and the temperature by; without it a share of `train` is split off.
        test: data to judge by; looked at once, at the end.
        ood: out-of-domain data to judge by, by name.
        model: a folder, a hub name, or `minilm`; `sentence-cnn`, or `sentence-cnn:FILE` with word vectors; for images
            `resnet18`, `resnet34`, `resnet50`, `resnext101` or `vgg16`, which begin with random weights.
        recipe: the training method: a name, `file.py:function`, or a `Recipe`.
        options: the recipe's options.
        out: the run folder; an unfinished run of the same settings there is continued, and a finished one returned.
        text: the column with the text; likewise `text_b`, `choices`, `label` and `id`.
        text_b: the column with the second text of a pair.
        choices: the column with the choices of multiple-choice data.
        label: the column with the label.
        id: the column with a unique id.
        votes: a column of label distributions, such as annotators' votes: used as soft targets.
        dev_fraction: the share split off as dev data.
        merge_labels: of labels that differ in case or blanks alone, make one, the commonest spelling, in all data sets
            (True), or train them as different (False); None refuses data that has such.
        epochs: passes over the training data: 3, or 30.
        batch_size: samples per update, over all processes and accumulated parts: 32, or 128.
        optimizer: `adamw`, or `sgd` with Nesterov momentum 0.9.
        lr: peak learning rate: 5e-5, or 0.02. The papers: 1e-5 or 2e-5 for BERT- and RoBERTa-base.
        weight_decay: 0, or 5e-4. AdamW's is not applied to biases and norms.
        warmup: share of the steps over which the learning rate rises: 0.1, or 0.
        schedule: what it does afterwards: `linear` to 0, or `steps`, halved after 1, 30, 60 and 80 % of the steps.
        clip: largest gradient norm: 1, or 0, which is no limit.
        accumulate: parts a batch is cut into, to save memory.
        max_length: tokens per text (or pair) at most; longer ones are cut and counted.
        image_size: images are scaled to so many pixels in height and width. Without it, to what the model says, or,
            for networks that begin with random weights, to the size they have if that is at most 64, or else 32.
        augment: in training, move images by up to an eighth of their size, and mirror them: `crop-flip`, `crop`
            or `none`.
        stream: decode images each time they are needed, some steps ahead, instead of keeping their pixels; None does so
            if memory does not hold them. The result is the same.
        select: the epoch that is kept: by dev NLL after temperature, NLL, accuracy, MCC, or the last.
        patience: stop after this many epochs without a better one; 0 never does.
        average: keep the weights averaged over about this share of the run; 0 takes them as they are. None leaves it to
            the recipe, and most of them do not average.
        class_weights: `balanced`, or weights by label name.
        seed: decides everything random.
        bins: of the calibration errors.
        guarantee: an accuracy to hold among accepted predictions, and the level of prediction sets. Half of the
            dev data is then kept from choosing anything, and used to find the threshold and the sets.
        dynamics: for recipes guided by training dynamics: a run folder, or a map, that recorded them. Without it a
            plain run is made first, in `out/dynamics`.
        online: for these recipes: no run before; after each epoch, the run's own dynamics guide the next.
        record: training dynamics are those of the training steps, for free where the recipe looks at unmixed texts, or
            of an evaluation pass over the training data after each epoch, which takes about a third more time.
        teacher: for recipes that learn from one (`distil`): a run folder or any classifier's folder or hub name, or
            several, whose probabilities are averaged. Rows of `train` then need no label.
        cache_teacher: compute the teacher's logits once, before training, and keep them in the run folder. False
            asks the teacher again in every step.
        scaled_teacher: False takes the temperature that was folded into a teacher's weights out again.
        precision: of the arithmetic; `auto` is bf16 on GPUs that have it, and on processors that are faster with it.
        gradient_checkpointing: recompute activations instead of keeping them: less memory, a third slower.
        checkpoint_minutes: save the state of the run this often.
        checkpoint_epochs: and after every so many epochs; 0 does not.
        track: `tensorboard`, `wandb` or another of accelerate's trackers, or several.
        lean: write no model, and of predictions and map no more than figures and other runs need.
        dry_run: train a few steps only, write nothing, and return the estimated steps, seconds and memory.
        on_progress: called about once a second.
        on_note: called with each thing the user should know.
    """
    method = recipe if isinstance(recipe, Recipe) else choose(recipe, options)
    track = named_trackers(track)
    pretrained = resolve(os.fspath(model))
    hyper = check_hyper(
        with_defaults(
            {
                "epochs": epochs,
                "batch_size": batch_size,
                "optimizer": optimizer,
                "lr": lr,
                "weight_decay": weight_decay,
                "warmup": warmup,
                "schedule": schedule,
                "clip": clip,
                "accumulate": accumulate,
                "select": select,
                "patience": patience,
                "seed": seed,
                "average": method.average if average is None else average,
            },
            pretrained,
        )
    )
    measures = check_hyper({"max_length": max_length, "bins": bins, "guarantee": guarantee})
    looks = check_hyper({"image_size": image_size, "augment": augment})
    saving = check_hyper({"checkpoint_minutes": checkpoint_minutes, "checkpoint_epochs": checkpoint_epochs})
    check_hyper({"precision": precision, "dev_fraction": dev_fraction, "record": record})
    teachers = load_teachers(teacher, method, scaled=scaled_teacher)
    sets = prepare_sets(
        train,
        dev=dev,
        test=test,
        ood=ood or {},
        guard=guarantee is not None,
        dev_fraction=dev_fraction,
        seed=seed,
        columns={"text": text, "text_b": text_b, "choices": choices, "label": label, "id": id, "votes": votes},
        teachers=teachers,
        merge_labels=merge_labels,
    )
    if method.prepare is not None:
        sets = replace(sets, train=method.prepare(sets.train))
    weights = class_weights_of(sets.train, class_weights)
    known = check_guided(method, dynamics, online, sets.train)
    two_runs = method.guide is not None and known is None and not online
    config = {
        "recipe": recipe_name(recipe),
        "options": dict(options or {}),
        "model": os.fspath(model),
        "model_hash": reused("identity", pretrained, partial(identity, pretrained)),
        **hyper,
        "average": hyper["average"] or None,
        "optimizer": None if hyper["optimizer"] == "adamw" else hyper["optimizer"],
        **measures,
        **(looks if sets.train.kind == "image" else {}),
        "class_weights": None if weights is None else weights.tolist(),
        "gradient_checkpointing": gradient_checkpointing,
        "online": online or None,
        "record": None if record == "training" else record,
        "dynamics": None if known is None else known.digest,
        "teacher": None if teachers is None else list(teachers.identities),
        "cache_teacher": None if cache_teacher else False,
        "data": {name: examples.digest() for name, examples in sets.named().items()},
    }
    folder = Path(out) if out is not None else Path("runs") / f"{config['recipe']}-{config_hash(config)}"
    with ExitStack() as held:
        decided: dict[str, Any] = {"precision": precision_for(precision), "threads": threads_here()}
        resuming = False
        if not dry_run:
            found = from_main(partial(_claim, held, folder, config))
            resuming, decided = found is not None, found or from_main(lambda: decided)
        if precision not in ("auto", decided["precision"]):
            raise InputError(f"{folder}: the run there was begun in {decided['precision']}; give another --out")
        torch.set_num_threads(decided["threads"])
        accelerator = accelerator_for(decided["precision"], () if dry_run else track, folder)
        loaded = load_network(
            pretrained,
            sets.named(),
            seed=seed,
            max_length=max_length,
            image_size=image_size,
            stream=stream,
            gradient_checkpointing=gradient_checkpointing,
            columns=sets.columns,
        )
        network, packed, fill = loaded.network, loaded.packed, loaded.fill
        tell = on_note if on_note is not None and accelerator.is_main_process else None
        notes = _told(
            sets.notes
            + promise_notes(sets.guard, guarantee)
            + loaded.notes
            + verify_mixing(network, packed["train"], method, loaded.reader)
            + record_notes(record)
            + dropped_notes(known)
            + cut_notes(decided.get("parts", []), config["recipe"]),
            tell,
        )
        data = training_set(sets.train, packed["train"], weights, augment=augment)
        rows = {name: len(examples) for name, examples in sets.named().items()}
        if dry_run:
            lesson, waiting = rehearsed_lesson(teachers, sets.train, data.packed, accelerator, cache=cache_teacher)
            cost = rehearse_run(network, data, method, accelerator, fill, hyper, record, two_runs, lesson)
            cost["seconds"] = round(cost["seconds"] + waiting, 3)
            return Run(folder, {"dry_run": True, "rows": rows, "labels": sets.train.label_names, "notes": notes} | cost)
        if accelerator.is_main_process:
            # Until something is saved, a run that fails leaves nothing behind.
            held.push(lambda kind, *_: abandon(folder) if kind is not None else None)
            if not resuming:
                begin_run(folder, config, decided)
        if two_runs:
            settings = {
                **hyper,
                "average": 0.0,
                **saving,
                "gradient_checkpointing": gradient_checkpointing,
                "on_progress": on_progress,
            }
            settings |= (
                {name: measures[name] for name in ("max_length", "bins")}
                | {"record": record}
                | looks
                | {"stream": stream}
            )
            _told([f"first a plain run, for its dynamics: {folder / 'dynamics'}"], tell)
            known = _first_run(sets, folder / "dynamics", model, class_weights, decided["precision"], settings)
            # It leaves accelerate's global state as its own.
            accelerator = accelerator_for(decided["precision"], track, folder)
        data = data.to(accelerator.device)
        guidance = Guidance(
            method,
            network,
            data,
            accelerator,
            given=lesson_of(teachers, folder, sets.train, data.packed, accelerator, cache=cache_teacher),
            dynamics=None if known is None else known.dynamics,
            dropped=None if known is None or known.verdicts is None else known.verdicts.dropped,
            online=online,
            record=record,
            seed=seed,
        )
        start_trackers(accelerator, track, config)
        done = yield Ready(
            network,
            data,
            method,
            guidance,
            accelerator,
            fill,
            (packed["dev"], sets.dev.labels),
            folder,
            config,
            hyper,
            saving,
            on_progress,
            tell,
        )
        judged = {name: examples for name, examples in sets.named().items() if name != "train"}
        logits = {
            name: done.best_dev
            if name == "dev" and done.best_dev is not None
            else predict_everywhere(network, packed[name], accelerator)
            for name in judged
        }
        for tracker in accelerator.trackers:
            tracker.finish()
        recorded = guidance.dynamics(ids=sets.train.ids, label_names=sets.train.label_names)
        notes += _told(done.notes + partner_notes(method, done.history) + map_notes(recorded), tell)
        facts = {
            "best_epoch": done.best_epoch,
            "epochs": done.history,
            "seconds": round(done.seconds, 3),
            "trained_beside": done.beside or None,
            "rows": rows,
            "notes": notes,
            "recorded_on": recorded.recorded_on if recorded.was_observed else None,
        }
        from_main(partial(write_map, folder, recorded, sets.train, lean=lean))
        metrics = from_main(partial(finish, folder, network, loaded.reader, judged, logits, config, facts, lean=lean))
    return Run(folder, metrics)


train = alone(stages)


def _first_run(
    sets: Sets,
    folder: Path,
    model: str | Path,
    class_weights: ClassWeights | None,
    precision: Any,
    settings: Mapping[str, Any],
) -> Known:
    """Return the dynamics of plain training with the same settings, made unless it is there already."""
    train(
        sets.train,
        dev=sets.dev,
        model=model,
        recipe="erm",
        out=folder,
        class_weights=class_weights,
        merge_labels=False,  # what was to be merged is
        precision=precision,
        on_note=lambda _: None,
        **settings,
    )
    return from_main(partial(known_dynamics, folder, sets.train))


def _claim(held: ExitStack, folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    held.enter_context(locked(folder))
    return find_run(folder, config)


def _told(notes: list[str], tell: Callable[[str], None] | None) -> list[str]:
    if tell is not None:
        for note in notes:
            tell(note)
    return notes
