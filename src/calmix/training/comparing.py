"""Several models asked about the same familiar and unfamiliar data: as trained, calibrated, and with MC-dropout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from calmix.calibration import accuracy, ece
from calmix.data import Examples
from calmix.data.reusing import reusing
from calmix.models import Beside, Classifier, Dropout, Ensemble, Predictor, folded_temperature
from calmix.training.unfamiliar import SCORES, Said, ask, separation

__all__ = ["Comparison", "compare_unfamiliar", "comparison_table"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came of it."""

    said: list[tuple[str, str, Said]]
    """Model and stage, data set, and what was said about it: once for each run of the model's name."""
    figures: dict[str, Any]
    """Model and stage → `runs`, accuracy and ECE on familiar data, and `data`: data set → figures."""


def compare_unfamiliar(
    models: Sequence[tuple[str, str, Predictor]],
    inside: Examples,
    outside: dict[str, Examples],
    *,
    passes: int | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Ask each (name, run, model) as it was trained, as it was calibrated, and with `passes` of MC-dropout.

    Runs of one name are seeds of one method: their figures are means, with the spread over them; one alone has
    intervals over rows.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    each: dict[str, list[tuple[str, dict[str, Said]]]] = {}
    with reusing():  # nobody tokenises or decodes again what another has
        for name, run, model in models:
            for stage, variant in _stages(model, passes, rate):
                variant.to(device)
                sets = {"test": inside} | outside
                said = {data: ask(variant, rows, progress=progress) for data, rows in sets.items()}
                variant.to("cpu")
                each.setdefault(f"{name}{stage}", []).append((run, said))
    figures = {name: _figures(runs, inside) for name, runs in each.items()}
    whole = [(name, data, found) for name, runs in each.items() for _, said in runs for data, found in said.items()]
    return Comparison(whole, figures)


def comparison_table(figures: Mapping[str, Any]) -> pa.Table:
    """Return the figures as a table: a row for each model, data set and score."""
    rows = []
    for model, about in figures.items():
        for data, found in about["data"].items():
            for score in SCORES:
                if score in found:
                    low, high = found[score]["interval"]
                    values = {key: found[score][key] for key in ("auroc", "spread", "aupr_out", "aupr_in", "fpr95")}
                    place = {"model": model, "runs": about["runs"], "data": data, "n": found["n"], "score": score}
                    sure = {"mean_confidence": found["mean_confidence"]}
                    rows.append({**place, **values, "low": low, "high": high, **sure})
    return pa.Table.from_pylist(rows)


def _stages(model: Predictor, passes: int | None, rate: float | None) -> list[tuple[str, Predictor]]:
    raw = model.unscaled()
    stages: list[tuple[str, Predictor]] = [("", raw)]
    if _is_calibrated(model):
        stages.append((" +TS", model))
    if passes is not None:
        stages.append((" +dropout", _dropped(raw, Dropout(passes, rate))))
    return stages


def _is_calibrated(model: Predictor) -> bool:
    if model.beside.recalibrator is not None:
        return True
    if isinstance(model, Ensemble):
        return any(_is_calibrated(member) for member in model.members)
    return folded_temperature(model.model) != 1


def _dropped(model: Predictor, dropout: Dropout) -> Predictor:
    if isinstance(model, Ensemble):
        return Ensemble(tuple(replace(member, beside=Beside(dropout=dropout)) for member in model.members))
    assert isinstance(model, Classifier)
    return replace(model, beside=Beside(dropout=dropout))


def _figures(runs: Sequence[tuple[str, Mapping[str, Said]]], inside: Examples) -> dict[str, Any]:
    test = [said["test"] for _, said in runs]
    found: dict[str, Any] = {
        "runs": len(runs),
        "folders": [run for run, _ in runs],
        "accuracy": float(np.mean([accuracy(said.probs, inside.labels) for said in test])),
        "ece": float(np.mean([ece(said.probs, inside.labels) for said in test])),
        "data": {},
    }
    for data in [name for name in runs[0][1] if name != "test"]:
        every = [separation(said["test"], said[data]) for _, said in runs]
        means: dict[str, Any] = {key: _mean([one[key] for one in every]) for key in every[0] if key not in SCORES}
        means["n"] = every[0]["n"]
        for score in SCORES:
            if score not in every[0]:
                continue
            areas = [one[score]["auroc"] for one in every]
            means[score] = {
                key: _mean([one[score][key] for one in every]) for key in ("auroc", "aupr_out", "aupr_in", "fpr95")
            }
            means[score]["interval"] = np.mean([one[score]["interval"] for one in every], axis=0).tolist()
            means[score]["spread"] = float(np.std(areas, ddof=1)) if len(areas) > 1 else None
        found["data"][data] = means
    return found


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
