"""What a training function is called with, held against what it takes."""

from collections.abc import Collection, Mapping, Sequence
from inspect import Signature
from typing import Any

from calmix.data.origin import closest, shown
from calmix.errors import InputError
from calmix.mixing import RECIPES
from calmix.mixing.choosing import options_of

__all__ = ["check_arguments"]

# What other libraries call them.
_HERE = {
    "batch": "batch_size",
    "device_batch_size": "batch_size",
    "eval": "dev",
    "eval_data": "dev",
    "eval_dataset": "dev",
    "folder": "out",
    "gradient_accumulation_steps": "accumulate",
    "label_column": "label",
    "learning_rate": "lr",
    "lr_scheduler_type": "schedule",
    "max_grad_norm": "clip",
    "max_len": "max_length",
    "max_seq_length": "max_length",
    "method": "recipe",
    "model_name": "model",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "output_dir": "out",
    "per_device_train_batch_size": "batch_size",
    "random_state": "seed",
    "report_to": "track",
    "text_column": "text",
    "train_batch_size": "batch_size",
    "valid": "dev",
    "validation": "dev",
    "warmup_ratio": "warmup",
}


def check_arguments(name: str, takes: Signature, args: Sequence[Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments that a function of this name and signature does not take, and say what may be meant."""
    for unknown in given:
        if unknown not in takes.parameters:
            raise InputError(f"{name}() has no argument {shown(unknown)}{_meant(unknown, takes.parameters)}")
    try:
        takes.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None


def _meant(unknown: str, known: Collection[str]) -> str:
    if unknown == "seeds":
        return ": a run has one seed, and `calmix study` trains several"
    if unknown in _HERE:
        return f"; did you mean {shown(_HERE[unknown])}?"
    if any(unknown == option.name for maker in RECIPES.values() for option in options_of(maker)):
        return f": options of the recipe are given as options={{{unknown!r}: …}}"
    return closest(unknown, sorted(known))
