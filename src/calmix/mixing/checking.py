"""Numbers and words a recipe is given, and the losses it gives, held against what they may be."""

from collections.abc import Sequence
from math import inf
from numbers import Real

from torch import Tensor

from calmix.data.origin import closest, shown
from calmix.errors import InputError

__all__ = ["check_per_row", "check_positive", "check_range", "check_word"]


def check_range(name: str, value: float, *, high: float = inf) -> None:
    """Refuse a number that is not finite or not between 0 and `high`."""
    if not (isinstance(value, Real) and 0 <= value <= high and value < inf):
        wants = "a finite number, 0 or above" if high == inf else f"between 0 and {high:g}"
        raise InputError(f"{name} must be {wants}, not {value!r}")


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not finite or not above 0."""
    if not (isinstance(value, Real) and 0 < value < inf):
        raise InputError(f"{name} must be a finite number above 0, not {value!r}")


def check_word(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that means nothing."""
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, not {shown(value)}{closest(str(value), known)}")


def check_per_row(losses: Tensor, rows: int) -> None:
    """Refuse losses that are not one for each row of a batch."""
    if losses.shape != (rows,):
        raise InputError(
            f"the recipe's loss has shape {tuple(losses.shape)} for {rows} rows: it must return one per row"
        )
