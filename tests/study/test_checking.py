"""Values of a study's file are of the kind that is meant, or refused in one line."""

from typing import Any

import pytest

from calmix.errors import InputError
from calmix.study import checking


def test_values_of_the_kind_that_is_meant_come_back() -> None:
    assert checking.seeds(3, "here") == (0, 1, 2)
    assert checking.seeds([5, 2], "here") == (5, 2)
    assert checking.names(["a", "b"], "here") == ["a", "b"]
    assert checking.figures(["ece"], ("accuracy", "ece"), "here") == ("ece",)
    assert checking.text("", "here") == ""
    assert checking.one_of("std", ("std", "error"), "here") == "std"
    assert checking.positive(1, "here") == 1
    checking.percentile(99.5, "here")


@pytest.mark.parametrize(
    ("check", "values"),
    [
        (checking.seeds, (0, -1, True, "3", [], [1, 1], ["a"], [-1], None)),
        (checking.names, ("a", [], [""], [1], ["a", "a"], 3, {})),
        (lambda value, where: checking.figures(value, ("ece",), where), ("ece", ["oe"], 3, [])),
        (checking.text, (3, True, ["a"], None)),
        (lambda value, where: checking.one_of(value, ("std",), where), ("std ", 3, ["std"])),
        (checking.positive, (0, -1, True, 1.0, "1")),
        (checking.percentile, (0, 100, True, "50", [50], float("nan"))),
    ],
)
def test_all_else_is_refused_where_it_is(check: Any, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InputError, match=r"^here"):
            check(value, "here")
