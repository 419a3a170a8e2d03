"""From labelled texts or images to a calibrated checkpoint and its figures, in one run folder."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from calmix.data import Examples
from calmix.data.reusing import reused
from calmix.errors import InputError
from calmix.mixing import Recipe, choose, verify_mixing
from calmix.models import Augment, HeadStart, Packed, Pixels, Pooling, identity, resolve
from calmix.training.batches import TrainingSet, training_set
from calmix.training.cross_fitting import FoldTraining, cross_fit, folds_of_head
from calmix.training.cutting import cut_notes
from calmix.training.defaults import with_defaults
from calmix.training.finishing import finish
from calmix.training.folder import FinishedRun, abandon, begin_run, config_hash, find_run, locked
from calmix.training.guiding import Guidance, Record, partner_notes, record_notes
from calmix.training.halves import Ready, Run, alone
from calmix.training.head_start import begin_head, start_for
from calmix.training.keeping import Fit, write_log
from calmix.training.launching import (
    Precision,
    accelerator_for,
    from_main,
    named_trackers,
    precision_for,
    start_trackers,
    threads_here,
)
from calmix.training.learning_notes import training_notes
from calmix.training.loop import Progress, predict_everywhere
from calmix.training.mapping import Known, check_guided, dropped_notes, known_dynamics, map_notes, write_map
from calmix.training.naming import recipe_name
from calmix.training.networks import load_network
from calmix.training.optimising import OptimizerName, Schedule, check_hyper
from calmix.training.preparing import ClassWeights, Sets, Source, class_weights_of, prepare_sets
from calmix.training.promises import promise_notes
from calmix.training.rehearsing import rehearse_run
from calmix.training.selecting import Selection
from calmix.training.surveying import survey
from calmix.training.teachers import Teacher, Teachers, lesson_of, load_teachers, rehearsed_lesson

__all__ = ["stages", "train"]


def stages(  # noqa: PLR0915 (what a run does, in its order)
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
    dev_fraction: float | None = None,
    merge_labels: bool | None = None,
    folds: int | None = None,
    head: HeadStart | None = None,
    pooling: Pooling | None = None,
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
        dev_fraction: the share split off as dev data: a tenth.
        folds: split nothing off, but train so many networks more, each on all parts of the training set but one; what
            they say of that part gives the temperature. None does so, in three, below 1,000 rows or 10 a
            class; 0 never does.
        merge_labels: of labels that differ in case or blanks alone, make one, the commonest spelling, in all data sets
            (True), or train them as different (False); None refuses data that has such.
        head: `fitted` to the network's features before it is fine-tuned, which is the default for networks that come
            with trained weights; or `random`. A head that was trained for these labels is kept.
        pooling: what a new head reads of a single text: the `mean` of all tokens, where the network can be given a
            layer that computes it, or the `first` token, or what else its architecture reads. `mean` is the default
            with a fitted head.
        epochs: passes over the training data; 0 fits the head alone. Pretrained networks make at least 120
            updates, and 1.5 for each class, in 3 epochs or more and 20 at most; others make 30 epochs, and up to 60
            for fewer than 3,200 images.
        batch_size: samples per update, over all processes and accumulated parts: 32, or 16 below 1,000 rows; 128, or
            down to 32 for fewer than 12,800 images.
        optimizer: `adamw`, or `sgd` with Nesterov momentum 0.9.
        lr: peak learning rate: 5e-5 for a network 384 wide and less for wider ones, twice that below 1,000 rows or with
            50 classes and more; 0.02.
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
    given = check_hyper(
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
        }
    )
    start = start_for(pretrained, head, pooling, epochs=given["epochs"])
    check_hyper({"folds": folds})
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
        folds=folds,
        fold_if_few=start.head == "fitted",
        seed=seed,
        columns={"text": text, "text_b": text_b, "choices": choices, "label": label, "id": id, "votes": votes},
        teachers=teachers,
        merge_labels=merge_labels,
    )
    whole = sets.train
    if method.prepare is not None and given["epochs"] != 0:
        sets = replace(sets, train=method.prepare(whole))
    hyper = with_defaults(given, pretrained, rows=len(whole), classes=len(whole.label_names))
    if hyper["epochs"] == 0 and not cache_teacher and (whole.labels < 0).all():
        raise InputError("--epochs 0 has nothing to fit a head to: give --cache, or rows with labels")
    weights = class_weights_of(sets.train, class_weights)
    known = check_guided(method, dynamics, online, sets.train)
    two_runs = method.guide is not None and known is None and not online and hyper["epochs"] > 0
    config = {
        "recipe": recipe_name(recipe),
        "options": dict(options or {}),
        "model": os.fspath(model),
        "model_hash": reused("identity", pretrained, partial(identity, pretrained)),
        **hyper,
        "head": start.head,
        "pooling": start.pooling,
        "folds": None if sets.folds is None else int(sets.folds.max()) + 1,
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
        "data": {
            name: examples.digest() for name, examples in sets.named().items() if name != "dev" or sets.folds is None
        },
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
        load = partial(
            load_network,
            pretrained,
            seed=seed,
            max_length=max_length,
            image_size=image_size,
            stream=stream,
            gradient_checkpointing=gradient_checkpointing,
            pooling=start.pooling,
            columns=sets.columns,
        )
        loaded = load(sets.named())
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
            cost = _cost(sets, data, network, method, accelerator, teachers, fill, config, two_runs=two_runs)
            return Run(folder, {"dry_run": True, "rows": rows, "labels": sets.train.label_names, "notes": notes} | cost)
        if accelerator.is_main_process:
            # Until something is saved, a run that fails leaves nothing behind.
            held.push(lambda kind, *_: abandon(folder) if kind is not None else None)
            if not resuming:
                begin_run(folder, config, decided)
        if two_runs:
            settings = {**hyper, **saving, **looks, "head": start.head, "pooling": start.pooling, "record": record}
            settings |= {"max_length": measures["max_length"], "bins": measures["bins"], "stream": stream}
            settings |= {"gradient_checkpointing": gradient_checkpointing, "on_progress": on_progress}
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
        fit_head = partial(
            begin_head,
            network,
            data,
            dev=None if sets.folds is not None else (packed["dev"], sets.dev.labels),
            accelerator=accelerator,
            trained=loaded.trained_head,
            set_inner=loaded.reads_mean,
            signals=guidance.given,
            folds=sets.folds if hyper["epochs"] == 0 else None,
            precision=decided["precision"],
            on_progress=on_progress,
        )
        of_folds = None
        if sets.folds is not None and hyper["epochs"] > 0:
            how = (load, method, hyper, start, class_weights, augment, record, decided["precision"])
            one = FoldTraining(folder, *how, on_progress, tell)
            of_folds = cross_fit(whole, sets.folds, one)
            # Those of the folds have left accelerate's global state as their own.
            accelerator = guidance.accelerator = accelerator_for(decided["precision"], track, folder)
        start_trackers(accelerator, track, config)
        done = yield Ready(
            network,
            data,
            method,
            guidance,
            accelerator,
            fill,
            None if sets.folds is not None else (packed["dev"], sets.dev.labels),
            folder,
            config,
            hyper,
            saving,
            on_progress,
            tell,
            fit_head if start.head == "fitted" else None,
            None if of_folds is None else of_folds.best_epoch(hyper["select"]),
        )
        of_folds = folds_of_head(done, sets) if of_folds is None else of_folds
        done = done if of_folds is None else of_folds.told_in(done)
        from_main(partial(write_log, folder, done.history))
        judged = {name: examples for name, examples in sets.named().items() if name != "train"}
        of_dev = done.best_dev if of_folds is None else of_folds.by_epoch[done.best_epoch]
        logits = _logits(judged, packed, network, accelerator, {} if of_dev is None else {"dev": of_dev})
        recorded = guidance.dynamics(ids=sets.train.ids, label_names=sets.train.label_names)
        learnt = _learning_notes(done, softened=config["recipe"] != "erm")
        notes += _told(done.notes + learnt + partner_notes(method, done.history) + map_notes(recorded), tell)
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
        expected = None if of_folds is None else of_folds.expected(done.best_epoch)
        ending = partial(finish, folder, network, loaded.reader, judged, logits, config, facts)
        metrics = from_main(partial(ending, expected=expected, lean=lean))
    return Run(folder, metrics)


train = alone(stages)

# Settings of a run that a map has no use for.
_NOT_OF_A_MAP = {"select", "patience", "checkpoint_epochs", "bins", "stream", "on_progress"}


def _learning_notes(done: Fit, *, softened: bool) -> list[str]:
    kept = next((entry["dev"] for entry in done.history if entry["epoch"] == done.best_epoch and "dev" in entry), None)
    if kept is None:
        return []
    return training_notes(done.history, kept["temperature"], best_epoch=done.best_epoch, softened=softened)


def _logits(
    judged: Mapping[str, Examples],
    packed: Mapping[str, Packed | Pixels],
    network: nn.Module,
    accelerator: Accelerator,
    known: Mapping[str, NDArray[np.float32]],
) -> dict[str, NDArray[np.float32]]:
    """Return the scores of each data set; trackers have heard all there is."""
    missing = [name for name in judged if name not in known]
    found = dict(known) | {name: predict_everywhere(network, packed[name], accelerator) for name in missing}
    for tracker in accelerator.trackers:
        tracker.finish()
    return found


def _cost(
    sets: Sets,
    data: TrainingSet,
    network: nn.Module,
    method: Recipe,
    accelerator: Accelerator,
    teachers: Teachers | None,
    fill: Mapping[str, int],
    config: Mapping[str, Any],
    *,
    two_runs: bool,
) -> dict[str, Any]:
    """Return about what a run would take."""
    cache = config["cache_teacher"] is None
    lesson, waiting = rehearsed_lesson(teachers, sets.train, data.packed, accelerator, cache=cache)
    hyper = {"optimizer": "adamw"} | {name: value for name, value in config.items() if value is not None}
    cost = rehearse_run(
        network,
        data,
        method,
        accelerator,
        fill,
        hyper,
        config["record"] or "training",
        two_runs,
        lesson,
        fitted=config["head"] == "fitted",
        folds=config["folds"],
    )
    return {**cost, "seconds": round(cost["seconds"] + waiting, 3)}


def _first_run(
    sets: Sets,
    folder: Path,
    model: str | Path,
    class_weights: ClassWeights | None,
    precision: Any,
    settings: Mapping[str, Any],
) -> Known:
    """Return the dynamics of plain training with the same settings, made unless it is there already.

    Without dev data of its own that is a map: to choose by the rows it learns from would be no choice.
    """
    if sets.folds is not None:
        show: Any = settings["on_progress"]
        shared = {name: value for name, value in settings.items() if name not in _NOT_OF_A_MAP}
        with suppress(FinishedRun):
            survey(
                sets.train,
                out=folder,
                model=os.fspath(model),
                class_weights=class_weights,
                merge_labels=False,
                precision=precision,
                on_progress=None if show is None else lambda _, progress: show(progress),
                **shared,
            )
        return from_main(partial(known_dynamics, folder, sets.train))
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
