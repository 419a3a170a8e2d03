"""`calmix map`: plain training for the sake of its dynamics, over every sample of a table."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmix.data import Examples, write_json
from calmix.dynamics import Dynamics, label_issues
from calmix.dynamics.cartography import check_fraction
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.models import Augment, identity, resolve
from calmix.training.batches import training_set
from calmix.training.cutting import cut_notes, read_cuts, retried
from calmix.training.defaults import with_defaults
from calmix.training.filtering import JUDGED, Verdicts, check_enough, judge
from calmix.training.folder import RECORDED, abandon, begin_run, find_run, locked, tidy
from calmix.training.guiding import Guidance, Record
from calmix.training.launching import accelerator_for, from_main, precision_for, processes, threads_here
from calmix.training.loop import Progress, fit, predict_everywhere
from calmix.training.mapping import map_notes, write_map
from calmix.training.networks import load_network
from calmix.training.optimising import OptimizerName, Schedule, check_hyper
from calmix.training.preparing import check_learnable

__all__ = ["Survey", "survey"]


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
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: OptimizerName | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    warmup: float | None = None,
    schedule: Schedule | None = None,
    clip: float | None = None,
    max_length: int = 256,
    image_size: int | None = None,
    augment: Augment = "crop-flip",
    seed: int = 0,
    filtered: bool = False,
    judged: str = "easy",
    percentile: float = 80.0,
    fraction: float = 0.33,
    record: Record = "training",
    checkpoint_minutes: float = 10.0,
    columns: Mapping[str, str] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    on_done: Callable[[Survey], None] | None = None,
) -> Survey:
    """Train plainly on all examples and write their data map to `out`.

    An unfinished map of the same settings there is gone on with. `on_done` is called once everything is known,
    on the main process: what it writes belongs to the map, which is finished only after it.

    With `filtered`, two more runs in which some easy samples carry a label that does not exist (threshold
    samples, Pleiss et al. 2020; Park & Caragea, NAACL 2022) judge every easy sample: those whose AUM is below
    the `percentile` of the threshold samples' are marked as not kept. `judged` may be `ambiguous` instead, or
    `both`, which takes two runs for each region. `fraction` is the share of the data in a region, which is to be that
    of the recipe or the subset that the filter is for.

    `record` says which logits are recorded, in all of these runs: see `calmix.train`. `columns` are those that were
    named to read the examples, by what they hold, for the commands that read the same table later.
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
        "seed": seed,
    }
    hyper = check_hyper(with_defaults(asked, pretrained))
    looks = check_hyper({"image_size": image_size, "augment": augment})
    check_hyper({"max_length": max_length, "checkpoint_minutes": checkpoint_minutes, "record": record})
    _check(examples, filtered, judged, percentile, fraction)
    config = {
        "command": "map",
        "model": model,
        "model_hash": identity(pretrained),
        **hyper,
        **(looks if examples.kind == "image" else {}),
        "max_length": max_length,
        "filtered": filtered,
        "percentile": percentile if filtered else None,
        "judged": judged if filtered else None,
        "fraction": fraction if filtered else None,
        "record": None if record == "training" else record,
        "data": {"train": examples.digest()},
    }

    def made() -> Survey:
        with ExitStack() as held:
            decided: dict[str, Any] = {"precision": precision_for("auto"), "threads": threads_here()}
            decided = from_main(partial(_claim, held, out, config, decided))
            torch.set_num_threads(decided["threads"])

            def recorded(data: Examples, folder: Path, stage: str) -> Dynamics:
                show = None if on_progress is None else partial(on_progress, stage)
                look = folder == out and record == "training"
                reads = {"max_length": max_length, **looks}
                settings = (hyper, reads, record, decided["precision"], checkpoint_minutes)
                return _recorded(data, folder, pretrained, *settings, show, last_look=look)

            dynamics = recorded(examples, out, "mapping")
            verdicts = None
            if filtered:
                verdicts = judge(examples, dynamics, judged, out, percentile, seed, recorded, fraction=fraction)
            figures = _figures(dynamics, verdicts)
            figures["notes"] += cut_notes(read_cuts(out).made, "erm")
            figures["columns"] = dict(columns or {})
            done = Survey(out, dynamics, verdicts, figures)
            from_main(partial(_write, done, examples, on_done))
        return done

    return retried(made)


def _check(examples: Examples, filtered: bool, judged: str, percentile: float, fraction: float) -> None:
    """Refuse what cannot be mapped, before anything is written."""
    check_learnable(examples)
    if not filtered:
        return
    if not 0 < percentile < 100:
        raise InputError(f"--percentile must be between 0 and 100, not {percentile}")
    if judged not in JUDGED:
        raise InputError(f"--judge is one of {', '.join(JUDGED)}, not {judged}")
    check_fraction(fraction, "--fraction")
    check_enough(examples, fraction)


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
    record: Record,
    precision: str,
    checkpoint_minutes: float,
    on_progress: Callable[[Progress], None] | None,
    *,
    last_look: bool,
) -> Dynamics:
    """Return the dynamics of plain training on all examples; a run that was interrupted in `folder` goes on.

    With `last_look` the trained model sees them all once more, which wrong labels are ranked by.
    """
    done = folder / RECORDED
    if from_main(done.is_file):
        if processes().is_main_process:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return from_main(partial(Dynamics.load, done))
    accelerator = accelerator_for(precision, (), folder)
    length, size = reads["max_length"], reads["image_size"]
    loaded = load_network(pretrained, {"train": examples}, seed=hyper["seed"], max_length=length, image_size=size)
    network, packed = loaded.network, loaded.packed["train"]
    data = training_set(examples, packed, augment=reads["augment"]).to(accelerator.device)
    recipe = choose("erm")
    guidance = Guidance(recipe, network, data, accelerator, record=record)
    fit(
        network,
        data,
        recipe,
        guidance,
        accelerator=accelerator,
        fill=loaded.fill,
        dev=None,
        accumulate=1,
        select="none",
        patience=0,
        out=folder,
        checkpoint_minutes=checkpoint_minutes,
        on_progress=on_progress,
        **hyper,
    )
    dynamics = guidance.dynamics(ids=examples.ids, label_names=examples.label_names)
    if last_look:
        dynamics = dynamics.with_last_look(predict_everywhere(network, packed, accelerator))
    if processes().is_main_process:
        dynamics.save(done)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return dynamics


def _figures(dynamics: Dynamics, verdicts: Verdicts | None) -> dict[str, Any]:
    issues = label_issues(dynamics)
    return {
        "n": len(dynamics),
        "epochs": dynamics.epochs,
        "recorded_on": dynamics.recorded_on,
        "mean_confidence": float(np.nanmean(dynamics.confidence)),
        "median_aum": float(np.nanmedian(dynamics.aum)),
        "label_issues": int(issues.flagged.sum()),
        "dropped_by_filter": None if verdicts is None else int(verdicts.dropped.sum()),
        "notes": map_notes(dynamics),
    }
