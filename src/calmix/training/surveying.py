"""`calmix map`: plain training for the sake of its dynamics, over every sample of a table."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calmix.data import Examples, write_json
from calmix.dynamics import (
    Dynamics,
    aum_filter_pair,
    easy_and_ambiguous,
    label_issues,
    threshold_pair,
)
from calmix.errors import InputError
from calmix.mixing import choose, fill_tokens
from calmix.models import encode, identity, load_for_training, resolve, usable_length
from calmix.training.batches import training_set
from calmix.training.folder import begin_run, find_run, locked
from calmix.training.guiding import Guidance
from calmix.training.launching import accelerator_for, precision_for
from calmix.training.loop import Progress, fit
from calmix.training.mapping import write_map
from calmix.training.optimising import check_hyper

__all__ = ["Survey", "survey"]

_FAKE = "(threshold sample)"


@dataclass(frozen=True, eq=False)
class Survey:
    """A finished map: where it is, what was recorded, and which samples an AUM filter keeps, if there was one."""

    folder: Path
    dynamics: Dynamics
    kept: NDArray[np.bool_] | None
    figures: dict[str, Any]


def survey(
    examples: Examples,
    *,
    out: Path,
    model: str = "minilm",
    epochs: int = 3,
    batch_size: int = 32,
    lr: float = 5e-5,
    weight_decay: float = 0.0,
    warmup: float = 0.1,
    max_length: int = 256,
    seed: int = 0,
    filtered: bool = False,
    percentile: float = 80.0,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> Survey:
    """Train plainly on all examples and write their data map to `out`.

    With `filtered`, two more runs in which some easy samples carry a label that does not exist (threshold
    samples, Pleiss et al. 2020; Park & Caragea, NAACL 2022) judge every easy sample: those whose AUM is below
    the `percentile` of the threshold samples' are marked as not kept.
    """
    hyper = check_hyper(
        {
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "weight_decay": weight_decay,
            "warmup": warmup,
            "seed": seed,
        }
    )
    check_hyper({"max_length": max_length})
    if filtered and examples.kind == "choices":
        raise InputError("the AUM filter is for classes: multiple-choice data has none to add a false one to")
    if not 0 < percentile < 100:
        raise InputError(f"--percentile must be between 0 and 100, not {percentile}")
    config = {
        "command": "map",
        "model": model,
        "model_hash": identity(resolve(model)),
        **hyper,
        "max_length": max_length,
        "filtered": filtered,
        "percentile": percentile if filtered else None,
        "data": {"train": examples.digest()},
    }
    with ExitStack() as held:
        held.enter_context(locked(out))
        decided: dict[str, Any] = {"precision": precision_for("auto"), "threads": torch.get_num_threads()}
        found = find_run(out, config)
        if found is None:
            begin_run(out, config, decided)
        decided = found or decided
        torch.set_num_threads(decided["threads"])

        def record(data: Examples, folder: Path, stage: str) -> Dynamics:
            show = None if on_progress is None else lambda progress: on_progress(stage, progress)
            return _recorded(data, folder, resolve(model), hyper, max_length, decided["precision"], show)

        dynamics = record(examples, out, "mapping")
        kept = _filter(examples, dynamics, out, percentile, seed, record) if filtered else None
        write_map(out, dynamics, examples, kept)
        figures = _figures(dynamics, kept)
        write_json(out / "metrics.json", figures)
    return Survey(out, dynamics, kept, figures)


def _filter(
    examples: Examples,
    dynamics: Dynamics,
    out: Path,
    percentile: float,
    seed: int,
    record: Callable[[Examples, Path, str], Dynamics],
) -> NDArray[np.bool_]:
    """Return which samples stay: all but the easy ones that two runs with threshold samples judge mislabelled."""
    easy, _ = easy_and_ambiguous(dynamics)
    names = examples.label_names
    pair = threshold_pair(examples.labels, len(names), easy, np.random.default_rng([seed, 1]))
    judged = [
        record(
            replace(examples, labels=fake.applied(examples.labels), label_names=(*names, _FAKE), targets=None),
            out / f"threshold-{turn}",
            f"threshold run {turn}",
        )
        for turn, fake in enumerate(pair, start=1)
    ]
    stays = aum_filter_pair(judged[0], pair[0], judged[1], pair[1], k=percentile)
    kept = np.ones(len(examples), dtype=np.bool_)
    kept[easy] = np.isin(easy, stays)
    return kept


def _recorded(
    examples: Examples,
    folder: Path,
    pretrained: str,
    hyper: Mapping[str, Any],
    max_length: int,
    precision: str,
    on_progress: Callable[[Progress], None] | None,
) -> Dynamics:
    """Return the dynamics of plain training on all examples; a run that was interrupted in `folder` goes on."""
    done = folder / "dynamics.parquet"
    if done.is_file():
        return Dynamics.load(done)
    accelerator = accelerator_for(precision, (), folder)
    torch.manual_seed(hyper["seed"])
    network, tokenizer = load_for_training(
        pretrained, label_names=examples.label_names, choices=examples.kind == "choices"
    )
    packed = encode(examples, tokenizer, max_length=usable_length(tokenizer, network.config, max_length))
    data = training_set(examples, packed).to(accelerator.device)
    recipe = choose("erm")
    guidance = Guidance(recipe, data.labels, accelerator)
    fit(
        network,
        data,
        recipe,
        guidance,
        accelerator=accelerator,
        fill=fill_tokens(tokenizer),
        dev=None,
        schedule="linear",
        clip=1.0,
        accumulate=1,
        select="none",
        patience=0,
        out=folder,
        on_progress=on_progress,
        **hyper,
    )
    dynamics = guidance.dynamics(ids=examples.ids, label_names=examples.label_names)
    if accelerator.is_main_process:
        dynamics.save(done)
    return dynamics


def _figures(dynamics: Dynamics, kept: NDArray[np.bool_] | None) -> dict[str, Any]:
    issues = label_issues(dynamics)
    return {
        "n": len(dynamics),
        "epochs": dynamics.epochs,
        "mean_confidence": float(np.nanmean(dynamics.confidence)),
        "median_aum": float(np.nanmedian(dynamics.aum)),
        "label_issues": int(issues.flagged.sum()),
        "dropped_by_filter": None if kept is None else int((~kept).sum()),
    }
