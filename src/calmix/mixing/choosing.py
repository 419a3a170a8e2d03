"""A recipe from its name and `key=value` options, and what there is to choose from."""

import difflib
import importlib
import importlib.util
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from calmix.errors import InputError
from calmix.mixing.recipes import RECIPES, Recipe

__all__ = ["Option", "choose", "describe", "options_of"]


@dataclass(frozen=True)
class Option:
    """One option of a recipe."""

    name: str
    kind: Any
    default: Any
    help: str


def choose(name: str, options: Mapping[str, Any] | None = None) -> Recipe:
    """Return the named recipe with these options; text values are read as what the option takes.

    `name` is one of `RECIPES`, or a function of your own as `package.module:function` or `file.py:function`.
    """
    maker = _maker(name)
    known = {option.name: option for option in options_of(maker)}
    values = {}
    for key, value in (options or {}).items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"recipe {name} has no option {key!r} (it has: {', '.join(known) or 'none'}){hint}")
        values[key] = _read(name, known[key], value)
    recipe = maker(**values)
    if not isinstance(recipe, Recipe):
        raise InputError(f"{name} returned {type(recipe).__name__}, not a calmix.recipes.Recipe")
    return recipe


def options_of(maker: Callable[..., Recipe]) -> list[Option]:
    """Return a recipe function's keyword options with the help its docstring gives them."""
    hints = typing.get_type_hints(maker)
    helps = _argument_helps(inspect.getdoc(maker) or "")
    return [
        Option(p.name, hints.get(p.name, str), p.default, helps.get(p.name, ""))
        for p in inspect.signature(maker).parameters.values()
    ]


def describe(maker: Callable[..., Recipe]) -> tuple[str, str]:
    """Return what a recipe is, in a sentence or two, and which paper it comes from (or nothing)."""
    paragraphs = (inspect.getdoc(maker) or "").split("\n\n")
    paper = next((" ".join(p.split()).removeprefix("Paper: ") for p in paragraphs if p.startswith("Paper:")), "")
    return " ".join(paragraphs[0].split()), paper


def _argument_helps(doc: str) -> dict[str, str]:
    _, _, block = doc.partition("Args:\n")
    helps: dict[str, str] = {}
    for line in block.splitlines():
        name, colon, text = line.strip().partition(": ")
        if colon and name.isidentifier():
            helps[name] = text
    return helps


def _maker(name: str) -> Callable[..., Recipe]:
    if name in RECIPES:
        return RECIPES[name]
    place, colon, function = name.rpartition(":")
    if not colon:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"there is no recipe {name!r} (there are: {', '.join(RECIPES)}){hint}")
    maker = getattr(_module(place), function, None)
    if not callable(maker):
        raise InputError(f"{place} has no function {function!r} that makes a recipe")
    return typing.cast("Callable[..., Recipe]", maker)


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if not Path(place).is_file():
            raise InputError(f"{place}: no such file, to take a recipe from")
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        raise InputError(f"{place}: cannot be imported to take a recipe from ({error})") from None
    return module


def _read(recipe: str, option: Option, value: Any) -> Any:
    """Return a value as the option's type; the message of a refusal says what would be accepted."""
    kind, wants = option.kind, ""
    try:
        if typing.get_origin(kind) is Literal:
            choices = typing.get_args(kind)
            wants = f"one of {', '.join(map(str, choices))}"
            if value not in choices:
                raise ValueError
            return value
        if kind is bool:
            wants = "true or false"
            return {"true": True, "false": False}[str(value).lower()]
        if typing.get_origin(kind) is tuple:
            wants = "whole numbers, as in 0,2,4"
            parts = value.split(",") if isinstance(value, str) else list(value)
            return tuple(int(part) for part in parts if str(part).strip())
        wants = {float: "a number", int: "a whole number"}.get(kind, "text")
        number = kind(value)
        if kind is float and not (0 <= number < float("inf")):
            wants = "a finite number, 0 or above"
            raise ValueError
        return number
    except (ValueError, KeyError, TypeError):
        raise InputError(f"recipe {recipe}: {option.name} takes {wants}, not {value!r}") from None
