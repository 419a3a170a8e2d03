"""What stands for a recipe in a run's identity: its name, or for one of the user's own, its content."""

import hashlib
import inspect
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmix.mixing import Recipe
from calmix.training.folder import file_hash

__all__ = ["recipe_name"]


def recipe_name(recipe: str | Recipe) -> str:
    """Return a recipe's name; a file's content or a function's code and numbers are part of it, as a hash."""
    if isinstance(recipe, Recipe):
        origin = getattr(recipe.loss, "__qualname__", type(recipe.loss).__name__).split(".")[0]
        content = "\n".join(_content(recipe, {}))
        return f"{origin}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    file, _, function = recipe.rpartition(":")
    if file.endswith(".py"):
        return f"{Path(file).stem}.{function}-{file_hash(Path(file))[:8]}"
    return recipe.replace(":", ".")


def _content(thing: Any, seen: dict[int, Any]) -> list[str]:
    """Return what determines a function or a value: code, defaults, and what it closes over, all the way down."""
    if isinstance(thing, int | float | complex | str | None):
        return [repr(thing)]
    if isinstance(thing, bytes):
        return [hashlib.sha256(thing).hexdigest()]
    if isinstance(thing, type | ModuleType):
        return [thing.__name__]
    if id(thing) in seen:
        return ["seen"]
    # Held, so that its id is not given to another while we look.
    seen[id(thing)] = thing
    return [type(thing).__name__, *(line for part in _parts(thing) for line in _content(part, seen)), "end"]


def _parts(thing: Any) -> list[Any]:
    parts: list[Any]
    match thing:
        case FunctionType():
            closed = inspect.getclosurevars(thing).nonlocals if thing.__closure__ else {}
            parts = [thing.__qualname__, thing.__code__, thing.__defaults__, thing.__kwdefaults__, closed]
        case CodeType():
            parts = [thing.co_code, thing.co_names, thing.co_consts]
        case partial():
            parts = [thing.func, thing.args, thing.keywords]
        case tuple() | list():
            parts = list(thing)
        case dict():
            parts = [item for pair in thing.items() for item in pair]
        case set() | frozenset():
            parts = sorted(map(repr, thing))
        case Tensor():
            raw = thing.detach().cpu().reshape(-1).view(torch.uint8)
            parts = [str(thing.dtype), tuple(thing.shape), raw.numpy().tobytes()]
        case np.ndarray():
            parts = [str(thing.dtype), thing.shape, thing.tobytes()]
        case _:
            parts = [type(thing).__qualname__, *sorted(getattr(thing, "__dict__", {}).items())]
    return parts
