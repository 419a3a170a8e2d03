"""Settings that depend on where training begins: from pretrained weights, or from random ones."""

import math
from collections.abc import Mapping
from typing import Any

from calmix.models import begins_random, is_sentence_cnn, width_of

__all__ = ["is_pretrained", "usual_epochs", "with_defaults"]

_PRETRAINED: dict[str, Any] = {
    "optimizer": "adamw",
    "weight_decay": 0.0,
    "warmup": 0.1,
    "schedule": "linear",
    "clip": 1.0,
}
# Thulasidasan et al. 2019, but for the epochs (they make 200), the learning rate (0.1) and the batches of few images:
# see docs/decisions.md.
_RANDOM: dict[str, Any] = {
    "optimizer": "sgd",
    "weight_decay": 5e-4,
    "warmup": 0.0,
    "schedule": "steps",
    "clip": 0.0,
}
# Kim 2014 has the batches; word vectors that begin in the right place need no warm-up.
_SENTENCE_CNN: dict[str, Any] = {
    "optimizer": "adamw",
    "epochs": 10,
    "batch_size": 50,
    "weight_decay": 0.0,
    "warmup": 0.0,
    "schedule": "constant",
    "clip": 1.0,
}
_RATES = {"adamw": 1e-3, "sgd": 0.02}
# The schedule of images: so many updates, by batches from 32 to 128, and where these are too many by more epochs.
_UPDATES_OF_IMAGES, _LEAST_OF_IMAGES, _MOST_OF_IMAGES = 3_000, 30, 60

# The schedule of pretrained networks: so many updates at least, and so many for each class, within these epochs. Below
# so many rows batches are smaller; there, or with so many classes, steps are larger. The rate is that of this width.
_UPDATES, _FOR_EACH_CLASS, _LEAST, _MOST = 120, 1.5, 3, 20
_FEW_ROWS, _MANY_CLASSES = 1_000, 50
_RATE, _WIDTH = 5e-5, 384


def is_pretrained(model: str) -> bool:
    """Return whether a model comes with trained weights."""
    return not (is_sentence_cnn(model) or begins_random(model))


def with_defaults(given: Mapping[str, Any], model: str, *, rows: int, classes: int) -> dict[str, Any]:
    """Return training settings with those that are None replaced by what suits the model and the data.

    `rows` and `classes` are those of the training set; multiple choice has no class.
    """
    if is_pretrained(model):
        usual = _PRETRAINED | _schedule(rows, classes, width_of(model), given.get("optimizer"))
        usual["epochs"] = usual_epochs(model, rows=rows, classes=classes)
    else:
        usual = dict(_SENTENCE_CNN)
        if not is_sentence_cnn(model):
            usual = _RANDOM | {"batch_size": _batch_of_images(rows)}
            usual["epochs"] = usual_epochs(model, rows=rows, classes=classes)
        usual["lr"] = _RATES.get(given.get("optimizer") or usual["optimizer"])
    return {name: usual.get(name) if value is None else value for name, value in given.items()}


def usual_epochs(model: str, *, rows: int, classes: int) -> int:
    """Return how many epochs a model is trained for on so many rows where nobody says."""
    if is_pretrained(model):
        updates = max(_UPDATES, _FOR_EACH_CLASS * classes)
        return min(_MOST, max(_LEAST, math.ceil(updates * _batch(rows) / max(1, rows))))
    if is_sentence_cnn(model):
        return int(_SENTENCE_CNN["epochs"])
    epochs = math.ceil(_UPDATES_OF_IMAGES * _batch_of_images(rows) / max(1, rows))
    return min(_MOST_OF_IMAGES, max(_LEAST_OF_IMAGES, epochs))


def _batch_of_images(rows: int) -> int:
    enough = rows * _LEAST_OF_IMAGES / _UPDATES_OF_IMAGES
    return int(min(128, max(32, enough // 16 * 16)))


def _batch(rows: int) -> int:
    return 16 if rows < _FEW_ROWS else 32


def _schedule(rows: int, classes: int, width: int, optimizer: str | None) -> dict[str, Any]:
    """Return batch size and learning rate for so many rows and classes, and a network so wide."""
    rate = 1e-2 if optimizer == "sgd" else _RATE * _WIDTH / width
    more = rows < _FEW_ROWS or classes >= _MANY_CLASSES
    return {"batch_size": _batch(rows), "lr": float(f"{2 * rate if more else rate:.6g}")}
