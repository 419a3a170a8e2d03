"""calmix as it comes, or with some options: this one, or an older one that PYTHONPATH names.

It is given files, trains, and predicts with what it has kept, as a user would. Jobs come from `rivals.py`.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rival_worker import Answer, Clock, Rows, read_rows, serve

import calmix


def texts_of(rows: Rows) -> list[Any]:
    """Return rows as `predict_proba` takes them."""
    beside = rows.choices if rows.choices is not None else rows.text_b
    return rows.text if beside is None else list(zip(rows.text, beside, strict=True))


def log(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logarithms; of choices that are not there, −inf."""
    with np.errstate(divide="ignore"):
        return np.log(probs)


def answer(job: dict[str, Any]) -> Answer:
    """Return what calmix says about the rows of a job."""
    if not Path(calmix.__file__).is_relative_to(job["sources"]):
        raise ImportError(f"calmix comes from {calmix.__file__}, not from {job['sources']}")
    folder, names, clock = Path(job["folder"]), job["names"], Clock()
    files = {name: folder / f"{name}.jsonl" for name in job["sets"]}
    own = {} if job["default_model"] else {"model": job["model"]}
    out = folder / "run"
    with clock.of("fit"):
        run = calmix.train(
            files.pop("train"),
            dev=files.pop("dev", None),
            out=out,
            seed=job["seed"],
            on_note=lambda line: None,
            **own,
            **job["options"],
        )
        classifier = calmix.load(run.folder)
    calibrated = {}
    with clock.of("predict"):
        for name, path in files.items():
            probs = classifier.predict_proba(texts_of(read_rows(path, names)))
            order = [classifier.label_names.index(label) for label in names] or slice(None)
            calibrated[name] = log(probs[:, order])
    temperature = float(run.metrics.get("temperature", 1.0))
    raw = {name: values * temperature for name, values in calibrated.items()}
    if "cooling" in run.metrics:
        raw = before_cooling(classifier, files, names, temperature)
    chosen = {"temperature": temperature, "best_epoch": run.metrics.get("best_epoch"), **dev_figures(run.metrics)}
    del classifier
    shutil.rmtree(out)
    return Answer(raw, clock, chosen, calibrated=calibrated)


def dev_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what the dev rows, or the folds, say of the epoch that is kept and of the fitted head alone.

    This is what a default may be chosen by.
    """
    found = {}
    for prefix, epoch in (("dev", metrics.get("best_epoch")), ("head", 0)):
        of = next((entry.get("dev") for entry in metrics["epochs"] if entry["epoch"] == epoch), None)
        found |= {f"{prefix}_{name}": of[name] for name in ("accuracy", "nll-ts", "temperature")} if of else {}
    return found


def before_cooling(
    classifier: Any, files: dict[str, Path], names: list[str], temperature: float
) -> dict[str, NDArray[np.float64]]:
    """Return the logits of a network without the temperature of each text that 0.1.0 keeps beside it."""
    from dataclasses import replace

    plain = replace(classifier, beside=replace(classifier.beside, cooling=None))
    found = {}
    for name, path in files.items():
        probs = plain.predict_proba(texts_of(read_rows(path, names)))
        order = [classifier.label_names.index(label) for label in names] or slice(None)
        found[name] = log(probs[:, order]) * temperature
    return found


if __name__ == "__main__":
    serve(answer)
