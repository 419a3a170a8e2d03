"""Settings that depend on where training begins: from pretrained weights, or from random ones."""

from collections.abc import Mapping
from typing import Any

from calmix.models import begins_random, is_sentence_cnn

__all__ = ["with_defaults"]

_PRETRAINED: dict[str, Any] = {
    "optimizer": "adamw",
    "epochs": 3,
    "batch_size": 32,
    "weight_decay": 0.0,
    "warmup": 0.1,
    "schedule": "linear",
    "clip": 1.0,
}
# Thulasidasan et al. 2019, but for the epochs (they make 200) and the learning rate (0.1): see docs/decisions.md.
_RANDOM: dict[str, Any] = {
    "optimizer": "sgd",
    "epochs": 30,
    "batch_size": 128,
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
_RATES = {(False, "adamw"): 5e-5, (False, "sgd"): 1e-2, (True, "adamw"): 1e-3, (True, "sgd"): 0.02}


def with_defaults(given: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return training settings with those that are None replaced by what suits the model."""
    words = is_sentence_cnn(model)
    random = words or begins_random(model)
    usual = dict(_SENTENCE_CNN if words else _RANDOM if random else _PRETRAINED)
    optimizer = given["optimizer"] if given.get("optimizer") is not None else usual["optimizer"]
    usual["lr"] = _RATES.get((random, optimizer), 5e-5)
    return {name: usual.get(name) if value is None else value for name, value in given.items()}
