"""What a function is called with, held against what it takes."""

from inspect import signature
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.training import train
from calmix.training.arguments import _HERE, check_arguments


def takes(data: Any, *, lr: float = 0.1, seed: int = 0) -> None:
    """Stand for a function that trains."""


def test_what_is_taken_passes() -> None:
    check_arguments("train", signature(takes), ["a.csv"], {"lr": 0.2})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("learning_rate", "; did you mean 'lr'?"),
        ("sed", "; did you mean 'seed'?"),
        ("smoothing", ": options of the recipe are given as options={'smoothing': …}"),
        ("seeds", ": a run has one seed, and `calmix study` trains several"),
        ("qwertz", ""),
    ],
)
def test_what_is_not_is_refused_with_what_may_be_meant(given: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        check_arguments("train", signature(takes), ["a.csv"], {"lr": 0.2, given: 1})
    assert str(caught.value) == f"train() has no argument {given!r}{says}"


def test_too_few_and_too_many_are_refused_by_the_name_of_the_function() -> None:
    for args in ([], [1, 2]):
        with pytest.raises(TypeError, match=r"^train\(\): "):
            check_arguments("train", signature(takes), args, {})


def test_every_other_librarys_name_leads_to_an_argument_of_train() -> None:
    known = signature(train).parameters
    assert set(_HERE.values()) <= set(known)
    assert not set(_HERE) & set(known)
