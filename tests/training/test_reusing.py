"""What many runs have in common is made once."""

from pathlib import Path
from typing import Any

import pytest

from calmix.training.reusing import reused, reusing


def test_outside_the_block_nothing_is_kept() -> None:
    made: list[int] = []
    for _ in range(2):
        reused("kind", "key", lambda: made.append(1))
    assert len(made) == 2


def test_inside_it_each_key_is_made_once() -> None:
    with reusing():
        first = reused("kind", 1, lambda: [1])
        assert reused("kind", 1, lambda: [2]) is first
        assert reused("kind", 2, lambda: [2]) == [2]
        assert reused("other", 1, lambda: [3]) == [3]
    with reusing():
        assert reused("kind", 1, lambda: [4]) == [4]


def test_copies_may_be_changed() -> None:
    with reusing():
        reused("kind", 1, lambda: [1], copied=list).append(2)
        assert reused("kind", 1, lambda: [5], copied=list) == [1]


def test_what_was_not_used_for_long_is_let_go() -> None:
    with reusing():
        kept = [reused("kind", key, object) for key in range(30)]
        assert reused("kind", 29, object) is kept[29]
        assert reused("kind", 0, object) is not kept[0]


@pytest.mark.parametrize("lengths", [(32, 8), (8, 32)])
def test_runs_are_the_same_with_and_without(quick: Any, outcome: Any, tmp_path: Path, lengths: tuple[int, int]) -> None:
    for length in lengths:
        quick(f"alone-{length}", max_length=length)
    with reusing():
        for length in lengths:
            quick(f"together-{length}", max_length=length)
    for length in lengths:
        alone, together = (outcome(tmp_path / f"{name}-{length}") for name in ("alone", "together"))
        assert alone == together
