"""The end of a run: temperature, figures, predictions, and the checkpoint with its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from calmix.calibration import Temperature
from calmix.data import Examples, write_json, write_table, write_text
from calmix.models import Beside, fold
from calmix.training.card import model_card
from calmix.training.correcting import guarded, save_whole
from calmix.training.evaluating import intervals, json_safe, measure
from calmix.training.folder import tidy
from calmix.training.predictions import lightened, prediction_table
from calmix.training.promises import promise_figures
from calmix.training.rare_classes import rare_classes

__all__ = ["finish"]


def finish(
    folder: Path,
    network: nn.Module,
    tokenizer: Any,
    judged: Mapping[str, Examples],
    logits: Mapping[str, NDArray[np.float32]],
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    expected: float | None = None,
    lean: bool = False,
) -> dict[str, Any]:
    """Fit the temperature on dev, fold it, write everything a finished run has, and return its figures.

    Before is what the network says as it is; after, with the temperature. `logits` are its scores for each data set,
    and are written with the predictions. `expected` is the temperature one would guess where there are few dev rows.
    `facts` are what is known already: epochs, rows, notes. The figures are written last: a run with them is finished.
    A `lean` run has no checkpoint, and of its predictions only what the figures are made of.
    """
    scaled = Temperature.fit(logits["dev"], judged["dev"].labels, expected=expected)
    names = judged["dev"].label_names
    figures: dict[str, Any] = {}
    for name, examples in judged.items():
        raw, probs = np.asarray(Temperature(1.0)(logits[name])), np.asarray(scaled(logits[name]))
        figures[name] = {
            stage: _measured(scored, examples.labels, config["bins"])
            for stage, scored in (("before", raw), ("after", probs))
        }
        figures[name]["after"]["rare"] = rare_classes(probs, examples.labels, names)
        table = prediction_table(examples, probs, label_names=names, logits=logits[name])
        write_table(lightened(table) if lean else table, folder / f"predictions-{name}.parquet")
    metrics: dict[str, Any] = {"temperature": scaled.temperature, "splits": figures}
    beside = Beside()
    if config["guarantee"] is not None:
        beside = guarded(np.asarray(scaled(logits["guard"])), judged["guard"].labels, config["guarantee"])
        metrics["guarantee"] = {key: value.to_json() for key, value in vars(beside).items() if value is not None}
        assert beside.threshold is not None
        kept = (np.asarray(scaled(logits["guard"])), judged["guard"].labels)
        metrics["promises"] = promise_figures(beside.threshold, *kept, names)
    metrics = json_safe({**metrics, **facts})
    if not lean:
        fold(network, scaled.temperature)
        save_whole(network, tokenizer, beside, folder / "model")
        write_text(folder / "model" / "README.md", model_card(config, metrics, names))
    write_json(folder / "metrics.json", metrics)
    tidy(folder)
    return metrics


def _measured(probs: NDArray[np.float64], labels: NDArray[np.int64], bins: int) -> dict[str, Any]:
    found = measure(probs, labels, bins=bins)
    return {**found, "intervals": intervals(probs, labels, bins=bins, measured=found)}
