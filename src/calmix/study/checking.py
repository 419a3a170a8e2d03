"""Values of a study's file: of the kind that is meant, or one line about what is wrong with them."""

from typing import Any

from calmix.data.origin import closest
from calmix.errors import InputError

__all__ = ["figures", "names", "one_of", "percentile", "positive", "seeds", "text"]


def seeds(value: Any, where: str) -> tuple[int, ...]:
    """Return seeds: so many, or those listed."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InputError(f"{where}: seeds must be at least 1, not {value}")
        value = list(range(value))
    if not isinstance(value, list) or not value or not all(isinstance(s, int) and s >= 0 for s in value):
        raise InputError(f"{where}.seeds: is how many, or a list of whole numbers, not {value!r}")
    if len(set(value)) < len(value):
        raise InputError(f"{where}.seeds: lists a seed twice")
    return tuple(value)


def names(value: Any, where: str) -> list[str]:
    """Return a list of names, none of them twice."""
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise InputError(f"{where}: must be a list of names")
    if len(set(value)) < len(value):
        raise InputError(f"{where}: names something twice")
    return value


def figures(value: Any, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return a list of some of the known figures."""
    return tuple(one_of(name, known, where) for name in names(value, where))


def text(value: Any, where: str) -> str:
    """Return text."""
    if not isinstance(value, str):
        raise InputError(f"{where}: must be text, not {value!r}")
    return value


def one_of(value: Any, choices: tuple[str, ...], where: str) -> str:
    """Return one of the choices."""
    if value not in choices:
        raise InputError(f"{where}: is one of {', '.join(choices)}, not {value!r}{closest(str(value), choices)}")
    return str(value)


def percentile(value: Any, where: str) -> None:
    """Refuse what is no number between 0 and 100."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 100:
        raise InputError(f"{where}: must be between 0 and 100, not {value}")


def positive(value: Any, where: str) -> int:
    """Return a whole number from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{where}: must be a whole number from 1, not {value!r}")
    return value
