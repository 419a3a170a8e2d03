"""From run folders to figures: one row per cell, data set, and before or after temperature scaling."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from calmix.calibration import Temperature
from calmix.data import read_table
from calmix.models import mean_logits
from calmix.study.grid import Cell, Plan
from calmix.study.working import Storage
from calmix.training import json_safe, measure
from calmix.training.folder import read_run

__all__ = ["FIGURE_COLUMNS", "Predictions", "collect", "figures_table", "filter_counts",
           "predictions_of"]  # fmt: skip

_DEFAULT_BINS = 15

FIGURE_COLUMNS = ("accuracy", "macro_f1", "mcc", "ece", "debiased_ece", "smooth_ece", "adaptive_ece", "classwise_ece",
                  "mce", "oe", "nll", "brier", "aurc")  # fmt: skip
"""The figures of a row, beside what it is about."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a run, or an ensemble, said about a data set: scores before any temperature, labels, temperature."""

    logits: NDArray[np.float64]
    labels: NDArray[np.int64]
    temperature: float

    def probs(self, *, scaled: bool) -> NDArray[np.float64]:
        """Return class probabilities, before or after temperature scaling."""
        return np.asarray(Temperature(self.temperature if scaled else 1.0)(self.logits))


def collect(plan: Plan, storage: Storage) -> list[dict[str, Any]]:
    """Return the figures of every cell whose runs are finished: see docs/study.md for the columns."""
    rows: list[dict[str, Any]] = []
    for cell in plan.cells:
        if not all(storage.finished(key) for key in cell.runs):
            continue
        about = {
            "task": cell.task,
            "model": cell.model,
            "setting": cell.setting,
            "method": cell.method,
            "seed": cell.seed,
            "run": "+".join(cell.runs),
            "seconds": _seconds(cell, plan, storage),
        }
        for data, figures in _figures(cell, plan, storage).items():
            place = {"data": data, "domain": "out" if data.startswith("ood-") else "in"}
            for scaled, measured in ((False, figures["before"]), (True, figures["after"])):
                values = {name: measured.get(name) for name in FIGURE_COLUMNS}
                temperature = figures["temperature"]
                rows.append(
                    {**about, **place, "scaled": scaled, "temperature": temperature, "n": measured["n"], **values}
                )
    return rows


def filter_counts(plan: Plan, storage: Storage) -> list[dict[str, Any]]:
    """Return how many samples each finished AUM filter judged and dropped, by region, and for which methods."""
    counts: list[dict[str, Any]] = []
    for spec in plan.runs.values():
        if spec.what != "map" or not storage.finished(spec.key):
            continue
        users = [
            cell.method
            for cell in plan.cells
            if any(spec.key in (needed.key for needed in plan.runs[key].builds_on) for key in cell.runs)
        ]
        found = _metrics(storage.folder(spec.key)).get("filter") or {}
        about = {"run": spec.key, "task": spec.task, "model": spec.model, "seed": spec.seed}
        about |= {"methods": list(dict.fromkeys(users)), "percentile": spec.percentile}
        about |= {"wording": spec.filter_wording, "on": spec.filter_on}
        counts += [
            {**about, **{name: one[name] for name in ("region", "judged", "dropped")}}
            for one in found.get("regions", [])
        ]
    return counts


def figures_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows of `collect` as a table with the same columns, whatever is in it."""
    text = ("task", "model", "setting", "method", "run", "data", "domain")
    kinds = {**dict.fromkeys(text, pa.string()), "seed": pa.int64(), "n": pa.int64(), "scaled": pa.bool_()}
    names = ("task", "model", "setting", "method", "seed", "run", "data", "domain", "scaled", "n", "seconds",
             "temperature", *FIGURE_COLUMNS)  # fmt: skip
    return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name, pa.float64())) for name in names})


def predictions_of(cell: Cell, storage: Storage, data: str) -> Predictions:
    """Return what the runs of a cell said about a data set; of several, the mean of their probabilities."""
    if len(cell.runs) == 1:
        folder = storage.folder(cell.runs[0])
        logits, labels = _logits(folder / f"predictions-{data}.parquet")
        return Predictions(logits, labels, float(_metrics(folder)["temperature"]))
    logits, labels = _mean_logits(cell, storage, data)
    held, gold = (logits, labels) if data == "dev" else _mean_logits(cell, storage, "dev")
    return Predictions(logits, labels, Temperature.fit(held, gold).temperature)


def _mean_logits(cell: Cell, storage: Storage, data: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    found = [_logits(storage.folder(key) / f"predictions-{data}.parquet") for key in cell.runs]
    return mean_logits([torch.from_numpy(logits) for logits, _ in found]).numpy(), found[0][1]


def _figures(cell: Cell, plan: Plan, storage: Storage) -> dict[str, dict[str, Any]]:
    """Return the figures of each data set, before and after temperature; measured anew where the run did not."""
    folder, bins = storage.folder(cell.runs[0]), plan.study.bins
    metrics = _metrics(folder)
    found: dict[str, dict[str, Any]] = {}
    for data, figures in metrics["splits"].items():
        if len(cell.runs) == 1 and bins == _bins(folder):
            found[data] = {**figures, "temperature": metrics["temperature"]}
            continue
        said = predictions_of(cell, storage, data)
        both = {
            name: json_safe(measure(said.probs(scaled=scaled), said.labels, bins=bins))
            for name, scaled in (("before", False), ("after", True))
        }
        found[data] = {**both, "temperature": said.temperature}
    return found


def _seconds(cell: Cell, plan: Plan, storage: Storage) -> float:
    """Return the seconds of training that a cell takes, those of the runs it builds on included."""
    total = 0.0
    for key in cell.runs:
        for each in (key, *(needed.key for needed in plan.runs[key].builds_on)):
            total += float(_metrics(storage.folder(each)).get("seconds") or 0.0)
    return total


@lru_cache(maxsize=4096)
def _metrics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return found


@lru_cache(maxsize=4096)
def _bins(folder: Path) -> int:
    return int(read_run(folder).get("config", {}).get("bins", _DEFAULT_BINS))


@lru_cache(maxsize=64)
def _logits(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the scores and the labels in a run's predictions."""
    table = read_table(path)
    lists = table["logits"].combine_chunks()
    widths = np.diff(np.asarray(lists.offsets))
    flat = np.asarray(lists.flatten(), dtype=np.float64)
    if len(set(widths.tolist())) == 1:
        logits = flat.reshape(len(widths), -1)
    else:
        logits = np.full((len(widths), int(widths.max())), -np.inf)
        logits[np.arange(logits.shape[1]) < widths[:, None]] = flat
    names = [name.removeprefix("p_") for name in table.column_names if name.startswith("p_")]
    names = names or [str(k) for k in range(logits.shape[1])]
    where = {name: k for k, name in enumerate(names)}
    return logits, np.array([where[label] for label in table["label"].to_pylist()], dtype=np.int64)
