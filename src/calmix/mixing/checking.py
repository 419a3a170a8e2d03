"""Numbers a recipe is given, held against what they may be."""

from math import inf

from calmix.errors import InputError

__all__ = ["check_positive", "check_range"]


def check_range(name: str, value: float, *, high: float = inf) -> None:
    """Refuse a number that is not finite or not between 0 and `high`."""
    if not (0 <= value <= high and value < inf):
        wants = "a finite number, 0 or above" if high == inf else f"between 0 and {high:g}"
        raise InputError(f"{name} must be {wants}, not {value!r}")


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not finite or not above 0."""
    if not 0 < value < inf:
        raise InputError(f"{name} must be a finite number above 0, not {value!r}")
