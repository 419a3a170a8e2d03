"""Numbers that cannot be, and words that mean nothing."""

import math
from typing import Any

import numpy as np
import pytest

from calmix.errors import InputError
from calmix.mixing.checking import check_positive, check_range, check_word


@pytest.mark.parametrize("value", [0, 0.5, 1])
def test_numbers_within_are_let_through(value: float) -> None:
    check_range("share", value, high=1)
    check_range("alpha", value * 100)


@pytest.mark.parametrize("value", [-0.1, 1.01, math.nan, math.inf])
def test_a_share_is_between_0_and_1(value: float) -> None:
    with pytest.raises(InputError, match=r"^share must be between 0 and 1, not "):
        check_range("share", value, high=1)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_size_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(InputError, match=r"^alpha must be a finite number, 0 or above, not "):
        check_range("alpha", value)


@pytest.mark.parametrize("value", ["0.4", None, [0.4]])
def test_what_is_no_number_is_refused_like_one_outside(value: Any) -> None:
    with pytest.raises(InputError, match=r"^alpha must be a finite number, 0 or above, not "):
        check_range("alpha", value)
    with pytest.raises(InputError, match=r"^tau must be a finite number above 0, not "):
        check_positive("tau", value)


def test_numbers_of_numpy_are_numbers() -> None:
    for value in (np.float32(0.5), np.int64(1)):
        check_range("share", value, high=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_positive_number_is_above_0(value: float) -> None:
    with pytest.raises(InputError, match=r"^temperature must be a finite number above 0, not "):
        check_positive("temperature", value)
    check_positive("temperature", 0.1)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("shufled", "; did you mean 'shuffled'?"),
        (["reversed"], "; did you mean 'reversed'?"),
        ("x", ""),
        (None, ""),
    ],
)
def test_a_word_that_means_nothing_is_refused_with_those_that_do(value: Any, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        check_word("pairs", value, ("reversed", "shuffled"))
    assert str(refused.value) == f"pairs must be one of reversed, shuffled, not {value!r}{hint}"
    check_word("pairs", "shuffled", ("reversed", "shuffled"))
