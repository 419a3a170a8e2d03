"""A recipe from its name and `key=value` options, and what there is to choose from."""

import difflib
import importlib
import importlib.util
import inspect
import math
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal

from calmix.data.origin import closest
from calmix.errors import InputError
from calmix.mixing.recipes import RECIPES, Recipe

__all__ = ["Option", "blame", "choose", "describe", "maker_of", "options_of"]

# Modules that recipes of the user's own come from.
_OWN: set[str] = set()


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
    maker = maker_of(name)
    known = {option.name: option for option in options_of(maker)}
    values = {}
    for key, value in (options or {}).items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"recipe {name} has no option {key!r} (it has: {', '.join(known) or 'none'}){hint}")
        values[key] = _read(name, known[key], value)
    needed = [option.name for option in known.values() if option.default is inspect.Parameter.empty]
    if lacking := [key for key in needed if key not in values]:
        raise InputError(f"recipe {name} needs a value for {', '.join(lacking)}")
    try:
        recipe = maker(**values)
    except InputError as error:
        raise InputError(f"recipe {name}: {error}") from None
    if not isinstance(recipe, Recipe):
        raise InputError(f"{name} returned {type(recipe).__name__}, not a calmix.recipes.Recipe")
    return recipe


def options_of(maker: Callable[..., Recipe]) -> list[Option]:
    """Return a recipe function's options with the help its docstring gives them.

    An option without a type hint takes what its default is; one without a default either, text.
    """
    hints = typing.get_type_hints(maker.func if isinstance(maker, partial) else maker)
    helps = _argument_helps(inspect.getdoc(maker) or "")
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    options = []
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind in named:
            untyped = str if parameter.default in (None, inspect.Parameter.empty) else type(parameter.default)
            kind = hints.get(parameter.name, untyped)
            options.append(Option(parameter.name, kind, parameter.default, helps.get(parameter.name, "")))
    return options


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


def maker_of(name: str) -> Callable[..., Recipe]:
    """Return the function behind a name: one of `RECIPES`, or one's own."""
    if name in RECIPES:
        return RECIPES[name]
    if name == "auto":
        raise InputError("there is no recipe 'auto' any more: it was the default of calmix 0.1.0; the default is erm")
    place, colon, function = name.rpartition(":")
    if not colon and name.endswith(".py"):
        raise InputError(f"{name}: say which of its functions makes the recipe, as {name}:FUNCTION")
    if not colon:
        # What papers call mixup would else be taken for the most alike name.
        close = ["input-mixup"] if name == "mixup" else difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"there is no recipe {name!r} (there are: {', '.join(RECIPES)}){hint}")
    maker = getattr(_module(place), function, None)
    if not callable(maker):
        raise InputError(f"{place} has no function {function!r} that makes a recipe")
    return typing.cast("Callable[..., Recipe]", maker)


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            module = importlib.import_module(place)
            _OWN.add(module.__name__)
            return module
        if not Path(place).is_file():
            raise InputError(f"{place}: no such file, to take a recipe from")
        # A name nothing else can have: a file called random.py must not stand in for the library's.
        name = f"calmix_recipe_{Path(place).stem}"
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        _OWN.add(name)
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{place}: cannot be imported to take a recipe from ({reason})") from error
    return module


def blame(error: BaseException) -> str | None:
    """Return where in a recipe of the user's own an error arose, and what it was, in a line; None if in none."""
    place = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") in _OWN:
            place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return None if place is None else f"{place}, in your recipe: {type(error).__name__}: {error}"


def _read(recipe: str, option: Option, value: Any) -> Any:
    """Return a value as the option's type; the message of a refusal says what would be accepted."""
    try:
        return _converted(option.kind, value)
    except (ValueError, KeyError, TypeError, OverflowError):
        wants = _wanted(option.kind)
        words = typing.get_args(option.kind) if typing.get_origin(option.kind) is Literal else ()
        hint = closest(str(value), list(map(str, words)))
        raise InputError(f"recipe {recipe}: {option.name} takes {wants}, not {value!r}{hint}") from None


def _converted(kind: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {str(choice): choice for choice in inner}[str(value)]
    if origin in (typing.Union, UnionType):
        if type(None) in inner and str(value).lower() == "none":
            return None
        return _converted(_first_of(inner), value)
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(_converted(inner[0], part) for part in parts if str(part).strip())
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if kind in (int, float) and (isinstance(value, bool) or kind(value) != float(value)):
        raise ValueError
    if kind is float and not math.isfinite(float(value)):
        raise ValueError
    return kind(value)


def _wanted(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (typing.Union, UnionType):
        return _wanted(_first_of(inner)) + (" or none" if type(None) in inner else "")
    if origin is tuple:
        return "numbers, as in 0.1,0.5" if inner[0] is float else "whole numbers, as in 0,2,4"
    return {bool: "true or false", float: "a finite number", int: "a whole number"}.get(kind, "text")


def _first_of(kinds: tuple[Any, ...]) -> Any:
    return next(kind for kind in kinds if kind is not type(None))
