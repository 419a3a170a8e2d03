"""Correcting the confidence of a model that is already trained, on new labelled data."""

import copy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from calmix.calibration import (
    ConformalSets,
    Histogram,
    Isotonic,
    Recalibrator,
    SelectiveThreshold,
    Temperature,
    VectorScaling,
)
from calmix.data import Examples, read_table, split_examples
from calmix.data.files import sync
from calmix.data.keys import folded_keys
from calmix.data.remembering import remember_columns
from calmix.errors import InputError
from calmix.models import Beside, Ensemble, Predictor, fold, save, save_ensemble, write_beside
from calmix.training.evaluating import json_safe, measure
from calmix.training.folder import claim_empty
from calmix.training.mapping import TEXTS
from calmix.training.optimising import check_hyper
from calmix.training.promises import promise_figures, promise_notes
from calmix.training.rare_classes import rare_classes

__all__ = ["Method", "calibrate", "guarded", "save_whole", "trained_on"]

Method = Literal["temperature", "vector", "isotonic", "histogram"]
_KINDS: dict[Method, Callable[..., Recalibrator]] = {
    "temperature": Temperature.fit,
    "vector": VectorScaling.fit,
    "isotonic": Isotonic.fit,
    "histogram": Histogram.fit,
}


def calibrate(
    classifier: Predictor,
    examples: Examples,
    *,
    out: Path,
    method: Method = "temperature",
    guarantee: float | None = None,
    bins: int = 15,
    seed: int = 0,
    columns: Mapping[str, str | None] | None = None,
    progress: Callable[[int], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Write a calibrated copy of a classifier to `out` and return its figures, before and after.

    A temperature goes into the weights; any other recalibrator, and any of an ensemble or of MC-dropout, is kept
    beside them, replaces one that was there, and is applied by `calmix.load`. With `guarantee`, half of the examples
    fit the recalibrator and the other half the threshold and the prediction sets; what was guaranteed before is void
    and dropped. `columns` are those that were named to read the examples, by what they hold: the copy remembers them.
    `on_note` is told of a guarantee that these rows cannot give, before the classifier is asked about any.
    """
    if classifier.multiple_choice and method != "temperature":
        raise InputError(f"{method} corrects classes, and choices are none: use a temperature")
    check_hyper({"guarantee": guarantee, "bins": bins, "seed": seed})
    with claim_empty(out):
        rows: dict[str, NDArray[np.int64]] = {"fit": np.arange(len(examples))}
        if guarantee is not None:
            first, second = split_examples(examples, dev_fraction=0.5, seed=seed)
            where = {id_: i for i, id_ in enumerate(examples.ids)}
            rows = {"fit": np.array([where[i] for i in first.ids]), "guard": np.array([where[i] for i in second.ids])}
            if on_note is not None:
                for note in promise_notes(second, guarantee):
                    on_note(note)
        logits = classifier.logits(examples, progress=progress)
        fitted = _KINDS[method](logits[rows["fit"]], examples.labels[rows["fit"]])
        figures: dict[str, Any] = {"method": method, "splits": {}}
        for name, chosen in rows.items():
            labels, probs = examples.labels[chosen], np.asarray(fitted(logits[chosen]))
            after: dict[str, Any] = {**measure(probs, labels, bins=bins)}
            figures["splits"][name] = {
                "before": measure(classifier.beside.probabilities(logits[chosen]), labels, bins=bins),
                "after": after | {"rare": rare_classes(probs, labels, examples.label_names)},
            }
        beside = Beside()
        if guarantee is not None:
            beside = guarded(np.asarray(fitted(logits[rows["guard"]])), examples.labels[rows["guard"]], guarantee)
            figures["guarantee"] = {key: value.to_json() for key, value in vars(beside).items() if value is not None}
            assert beside.threshold is not None
            kept = (np.asarray(fitted(logits[rows["guard"]])), examples.labels[rows["guard"]])
            figures["promises"] = promise_figures(beside.threshold, *kept, examples.label_names)
        if isinstance(fitted, Temperature):
            figures["temperature"] = fitted.temperature
        if isinstance(classifier, Ensemble):
            whole = replace(beside, recalibrator=fitted)

            def write(folder: Path) -> None:
                save_ensemble(classifier, whole, folder)
                remember_columns(folder, columns or {})

            _write_whole(out, write)
        elif isinstance(fitted, Temperature) and classifier.beside.dropout is None:
            model = copy.deepcopy(classifier.model)  # the classifier we were given goes on as it was
            fold(model, fitted.temperature)
            save_whole(model, classifier.tokenizer, beside, out, columns)
        else:
            # The mean of softened predictions is not the softened mean: its temperature fits into no weights.
            beside = replace(beside, recalibrator=fitted, dropout=classifier.beside.dropout)
            save_whole(classifier.model, classifier.tokenizer, beside, out, columns)
    return dict(json_safe(figures))


def trained_on(model: str | Path, examples: Examples) -> int:
    """Return how many examples the run that made a model was trained on, as far as its data map tells."""
    folder = Path(model)
    known = next((f / "datamap.parquet" for f in (folder, folder.parent) if (f / "datamap.parquet").is_file()), None)
    if known is None:
        return 0
    table = read_table(known)
    columns = [name for name in (*TEXTS, "image_key") if name in table.column_names]
    told = "text" in columns or "image_key" in columns
    if not told or any(name not in examples.table.column_names for name in columns):
        return 0
    seen = set(folded_keys(table.select(columns)))
    return sum(key in seen for key in folded_keys(examples.table.select(columns)))


def guarded(probs: NDArray[np.float64], labels: NDArray[np.int64], accuracy: float) -> Beside:
    """Return the threshold and the sets that hold `accuracy`, from rows that chose nothing else."""
    return Beside(
        threshold=SelectiveThreshold.fit(probs, labels, accuracy=accuracy),
        sets=ConformalSets.fit(probs, labels, level=accuracy),
    )


def save_whole(
    model: nn.Module,
    tokenizer: Any,
    beside: Beside,
    folder: Path,
    columns: Mapping[str, str | None] | None = None,
) -> None:
    """Write a checkpoint and what is beside it, with columns to remember: complete or absent."""

    def write(scratch: Path) -> None:
        save(model, tokenizer, scratch)
        write_beside(scratch, beside)
        remember_columns(scratch, columns or {})

    _write_whole(folder, write)


def _write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Let a folder be written under a name of its own, then rename it."""
    folder = folder.absolute()
    scratch = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        write(scratch)
        for path in (*scratch.rglob("*"), scratch):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
