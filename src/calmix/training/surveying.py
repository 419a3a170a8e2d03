"""`calmix map`: plain training for the sake of its dynamics, over every sample of a table."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calmix.data import Examples, fold_examples, write_json
from calmix.data.label_twins import merging_line, settled_labels
from calmix.dynamics import Dynamics, label_issues
from calmix.dynamics.thresholds import Wording
from calmix.errors import InputError
from calmix.mixing import choose, verify_mixing
from calmix.models import Augment, HeadStart, Pooling, identity, resolve
from calmix.training.batches import training_set
from calmix.training.cutting import cut_notes, read_cuts, retried
from calmix.training.defaults import with_defaults
from calmix.training.filtering import Filter, FilterCount, FilterOn, Verdicts, filter_notes, judge
from calmix.training.folder import RECORDED, TOLD, abandon, begin_run, find_run, locked, tidy
from calmix.training.guiding import Guidance, Record
from calmix.training.head_start import begin_head, start_for
from calmix.training.launching import Precision, accelerator_for, from_main, precision_for, processes, threads_here
from calmix.training.loop import Beginning, Progress, fit, predict_everywhere
from calmix.training.mapping import map_notes, write_map
from calmix.training.networks import load_network
from calmix.training.optimising import OptimizerName, Schedule, check_hyper
from calmix.training.preparing import ClassWeights, check_learnable, class_weights_of
from calmix.training.state import latest, save_state

__all__ = ["Survey", "survey"]

# Parts of the samples that heads are fitted without, and how many samples such heads judge at most: the features of all
# are in memory.
_PARTS, _MOST_CROSSED = 5, 50_000
# Epochs of a map, at least: one alone shows no variability.
_LEAST = 2
# What these heads said, while the run goes on.
_HEAD = Path("checkpoints") / "head"


@dataclass(frozen=True, eq=False)
class Survey:
    """A finished map: where it is, what was recorded, and which samples an AUM filter keeps, if there was one."""

    folder: Path
    dynamics: Dynamics
    verdicts: Verdicts | None
    """What the AUM filter says of the samples, if there was one."""
    figures: dict[str, Any]


def survey(
    examples: Examples,
    *,
    out: Path,
    model: str = "minilm",
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
    class_weights: ClassWeights | None = None,
    precision: Precision = "auto",
    gradient_checkpointing: bool = False,
    seed: int = 0,
    filtered: bool = False,
    judged: str = "easy",
    percentile: float = 80.0,
    fraction: float = 0.33,
    filter_wording: Wording = "balanced",
    filter_on: FilterOn = "region",
    record: Record = "training",
    checkpoint_minutes: float = 10.0,
    columns: Mapping[str, str] | None = None,
    merge_labels: bool | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    on_done: Callable[[Survey], None] | None = None,
) -> Survey:
    """Train plainly on all examples and write their data map to `out`.

    Where a head is fitted, an epoch less is made than `calmix.train` would make, and heads that had not seen a sample
    judge its label as well.

    An unfinished map of the same settings there is gone on with. `on_done` is called once everything is known, on the
    main process: what it writes belongs to the map, which is finished only after it.

    With `filtered`, two more runs in which some easy samples carry a label that does not exist (threshold
    samples, Pleiss et al. 2020; Park & Caragea, NAACL 2022) judge every easy sample: those whose AUM is below
    the `percentile` of the threshold samples' are marked as not kept. `judged` may be `ambiguous` instead, or
    `both`, which takes two runs for each region. `fraction` is the share of the data in a region, which is to be that
    of the recipe or the subset that the filter is for. These runs train on the region alone, as the paper's do, or,
    with `filter_on="all"`, on all samples, where practically nothing is dropped. With `filter_wording="literal"`
    threshold samples are n / (c + 1) of the n samples *for each class*, as the paper's text says, relabelled to any
    other class; that takes c + 1 runs for c classes.

    `record` says which logits are recorded, in all of these runs: see `calmix.train`. `columns` are those that were
    named to read the examples, by what they hold, for the commands that read the same table later. `merge_labels`
    says what becomes of labels that differ in case or blanks alone: see `calmix.train`.
    """
    pretrained = resolve(model)
    asked = {
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": lr,
        "weight_decay": weight_decay,
        "warmup": warmup,
        "schedule": schedule,
        "clip": clip,
        "accumulate": accumulate,
        "seed": seed,
    }
    start = start_for(pretrained, head, pooling)
    hyper = with_defaults(check_hyper(asked), pretrained, rows=len(examples), classes=len(examples.label_names))
    if epochs is None and start.head == "fitted":  # fitting it costs a third of an epoch, and shows what one would
        hyper["epochs"] = max(_LEAST, hyper["epochs"] - 1)
    if hyper["epochs"] < 1:
        raise InputError("a map is what training reveals: --epochs must be at least 1")
    looks = check_hyper({"image_size": image_size, "augment": augment})
    check_hyper({"max_length": max_length, "checkpoint_minutes": checkpoint_minutes, "record": record})
    check_hyper({"precision": precision})
    examples, renamed = settled_labels(examples, merge_labels)
    check_learnable(examples)
    weights = class_weights_of(examples, class_weights)
    by = Filter(judged=judged, fraction=fraction, percentile=percentile, wording=filter_wording, on=filter_on)
    if filtered:
        by.check(examples)
    config = {
        "command": "map",
        "model": model,
        "model_hash": identity(pretrained),
        **hyper,
        "head": start.head,
        "pooling": start.pooling,
        **(looks if examples.kind == "image" else {}),
        "max_length": max_length,
        "accumulate": None if hyper["accumulate"] == 1 else hyper["accumulate"],
        "class_weights": None if weights is None else weights.tolist(),
        "gradient_checkpointing": gradient_checkpointing or None,
        "filtered": filtered,
        "percentile": percentile if filtered else None,
        "judged": judged if filtered else None,
        "fraction": fraction if filtered else None,
        "filter_wording": filter_wording if filtered else None,
        "filter_on": filter_on if filtered else None,
        "record": None if record == "training" else record,
        "data": {"train": examples.digest()},
    }

    def made() -> Survey:
        with ExitStack() as held:
            decided: dict[str, Any] = {"precision": precision_for(precision), "threads": threads_here()}
            decided = from_main(partial(_claim, held, out, config, decided))
            if precision not in ("auto", decided["precision"]):
                raise InputError(f"{out}: the map there was begun in {decided['precision']}; give another --out")
            torch.set_num_threads(decided["threads"])

            def recorded(data: Examples, folder: Path, stage: str) -> Dynamics:
                show = None if on_progress is None else partial(on_progress, stage)
                reads = {"max_length": max_length, **looks, "gradient_checkpointing": gradient_checkpointing}
                reads |= {"head": start.head, "pooling": start.pooling}
                settings = (hyper, reads, class_weights, record, decided["precision"], checkpoint_minutes)
                return _recorded(data, folder, pretrained, *settings, show, whole=folder == out)

            dynamics = recorded(examples, out, "mapping")
            verdicts, counts = judge(examples, dynamics, by, out, seed, recorded) if filtered else (None, [])
            figures = {**_figures(dynamics, verdicts), "filter": _filter_figures(by, counts) if filtered else None}
            merging = [merging_line("train", renamed)] if renamed else []
            figures["notes"] = merging + from_main(partial(_told, out)) + figures["notes"] + filter_notes(counts)
            figures["notes"] += cut_notes(read_cuts(out).made, "erm")
            figures["columns"] = dict(columns or {})
            done = Survey(out, dynamics, verdicts, figures)
            from_main(partial(_write, done, examples, on_done))
        return done

    return retried(made)


def _claim(held: ExitStack, out: Path, config: Mapping[str, Any], decided: Mapping[str, Any]) -> dict[str, Any]:
    """Hold the folder; return what was decided for the map in it, which is begun if there is none."""
    held.enter_context(locked(out))
    found = find_run(out, config)
    # Until something is saved, a map that fails leaves nothing behind.
    held.push(lambda kind, *_: abandon(out) if kind is not None else None)
    if found is None:
        begin_run(out, config, decided)
    return found or dict(decided)


def _write(done: Survey, examples: Examples, on_done: Callable[[Survey], None] | None) -> None:
    write_map(done.folder, done.dynamics, examples, done.verdicts)
    if on_done is not None:
        on_done(done)
    write_json(done.folder / "metrics.json", done.figures)
    tidy(done.folder)


def _recorded(
    examples: Examples,
    folder: Path,
    pretrained: str,
    hyper: Mapping[str, Any],
    reads: Mapping[str, Any],
    class_weights: ClassWeights | None,
    record: Record,
    precision: str,
    checkpoint_minutes: float,
    on_progress: Callable[[Progress], None] | None,
    *,
    whole: bool,
) -> Dynamics:
    """Return the dynamics of plain training on all examples; a run that was interrupted in `folder` goes on.

    Of the `whole` table notes are kept, and the trained model sees it once more, which wrong labels are ranked by,
    unless it has seen it after each epoch.
    """
    done = folder / RECORDED
    if from_main(done.is_file):
        if processes().is_main_process:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return from_main(partial(Dynamics.load, done))
    accelerator = accelerator_for(precision, (), folder)
    loaded = load_network(
        pretrained,
        {"train": examples},
        seed=hyper["seed"],
        max_length=reads["max_length"],
        image_size=reads["image_size"],
        gradient_checkpointing=reads["gradient_checkpointing"],
        pooling=reads["pooling"],
    )
    network, packed = loaded.network, loaded.packed["train"]
    weights = class_weights_of(examples, class_weights)
    data = training_set(examples, packed, weights, augment=reads["augment"]).to(accelerator.device)
    recipe = choose("erm")
    notes = loaded.notes + verify_mixing(network, packed, recipe, loaded.reader)
    guidance = Guidance(recipe, network, data, accelerator, record=record)
    crossed = whole and not loaded.trained_head and len(examples) <= _MOST_CROSSED
    begin = partial(
        begin_head,
        network,
        data,
        dev=None,
        accelerator=accelerator,
        trained=loaded.trained_head,
        set_inner=loaded.reads_mean,
        folds=_parts_of(examples) if crossed else None,
        precision=precision,
        on_progress=on_progress,
    )
    trained = fit(
        network,
        data,
        recipe,
        guidance,
        accelerator=accelerator,
        fill=loaded.fill,
        dev=None,
        select="none",
        patience=0,
        out=folder,
        checkpoint_minutes=checkpoint_minutes,
        begin=partial(_begun, folder, begin) if reads["head"] == "fitted" else None,
        on_progress=on_progress,
        **hyper,
    )
    dynamics = guidance.dynamics(ids=examples.ids, label_names=examples.label_names)
    kept = from_main(partial(latest, folder / _HEAD))
    if kept is not None:
        dynamics = dynamics.with_head(kept[0]["logits"]["folds"].numpy())
    if whole and record == "training":
        dynamics = dynamics.with_last_look(predict_everywhere(network, packed, accelerator))
    if processes().is_main_process:
        if whole:
            write_json(folder / TOLD, notes + trained.notes)
        dynamics.save(done)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return dynamics


def _begun(folder: Path, begin: Callable[[], Beginning | None]) -> Beginning | None:
    """Return where training begins; what heads said of samples they were not fitted to is kept beside the run."""
    began = begin()
    if began is None or began.fold_logits is None:
        return began
    if processes().is_main_process:
        said = {"folds": torch.from_numpy(began.fold_logits)}
        save_state(folder / _HEAD, 0, {"logits": said}, {})
    return replace(began, fold_logits=None)


def _parts_of(examples: Examples) -> NDArray[np.int64] | None:
    """Return the parts of cross-fitting that samples are in; None where there are too few different ones."""
    try:
        return fold_examples(examples, _PARTS)
    except InputError:
        return None


def _told(folder: Path) -> list[str]:
    """Return what was noted when the map in a folder was trained, be it before it was interrupted."""
    file = folder / TOLD
    found: list[str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return found


def _figures(dynamics: Dynamics, verdicts: Verdicts | None) -> dict[str, Any]:
    issues = label_issues(dynamics)
    return {
        "n": len(dynamics),
        "epochs": dynamics.epochs,
        "recorded_on": dynamics.recorded_on,
        "mean_confidence": float(np.nanmean(dynamics.confidence)),
        "median_aum": float(np.nanmedian(dynamics.aum)),
        "label_issues": int(issues.flagged.sum()),
        "suspects_withheld": issues.withheld or None,
        "dropped_by_filter": None if verdicts is None else int(verdicts.dropped.sum()),
        "notes": map_notes(dynamics),
    }


def _filter_figures(by: Filter, counts: Sequence[FilterCount]) -> dict[str, Any]:
    settings = {"wording": by.wording, "on": by.on, "percentile": by.percentile, "fraction": by.fraction}
    return {**settings, "regions": [asdict(one) | {"labels_lost": list(one.labels_lost)} for one in counts]}
