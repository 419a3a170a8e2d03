"""What stands for a recipe in a run's identity: its name, or for one of the user's own, its content."""

import hashlib
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from torch import Tensor

from calmix.mixing import Recipe
from calmix.training.folder import file_hash

__all__ = ["recipe_name"]


def recipe_name(recipe: str | Recipe) -> str:
    """Return a recipe's name; a file's content or a function's code and numbers are part of it, as a hash."""
    if isinstance(recipe, Recipe):
        origin = getattr(recipe.loss, "__qualname__", type(recipe.loss).__name__).split(".")[0]
        content = "\n".join(_content(recipe, set()))
        return f"{origin}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    file, _, function = recipe.rpartition(":")
    if file.endswith(".py"):
        return f"{Path(file).stem}.{function}-{file_hash(Path(file))[:8]}"
    return recipe.replace(":", ".")


def _content(thing: Any, seen: set[int]) -> list[str]:
    """Return what determines a function or a value: code, defaults, and what it closes over, all the way down."""
    if isinstance(thing, int | float | complex | str | bytes | None):
        return [repr(thing)]
    if id(thing) in seen:
        return ["seen"]
    seen.add(id(thing))
    if isinstance(thing, FunctionType):
        closed = [cell.cell_contents for cell in thing.__closure__ or ()]
        parts = [thing.__qualname__, thing.__code__, thing.__defaults__, thing.__kwdefaults__, *closed]
    elif isinstance(thing, CodeType):
        parts = [thing.co_code, thing.co_names, thing.co_consts]
    elif isinstance(thing, partial):
        parts = [thing.func, thing.args, thing.keywords]
    elif isinstance(thing, tuple | list):
        parts = list(thing)
    elif isinstance(thing, dict):
        parts = [item for pair in thing.items() for item in pair]
    elif isinstance(thing, set | frozenset):
        parts = sorted(map(repr, thing))
    elif isinstance(thing, Tensor | np.ndarray):
        parts = [str(thing.dtype), tuple(thing.shape), np.asarray(thing).tobytes()]
    else:
        parts = [type(thing).__qualname__, *sorted(getattr(thing, "__dict__", {}).items())]
    return [type(thing).__name__, *(line for part in parts for line in _content(part, seen)), "end"]
