"""Who is mixed with whom."""

from typing import Any

import pytest

from calmix.mixing.pairing import reversed_batch, shuffled


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_shuffled_is_a_permutation_drawn_anew_each_time(make_step: Any, rows: int) -> None:
    step = make_step(rows=rows)
    drawn = {tuple(shuffled(step).tolist()) for _ in range(60)}
    assert all(sorted(each) == list(range(rows)) for each in drawn)
    assert len(drawn) > 1 or rows == 1


@pytest.mark.parametrize(("rows", "expected"), [(1, [0]), (4, [3, 2, 1, 0]), (5, [4, 3, 2, 1, 0])])
def test_reversed_is_the_batch_back_to_front_and_draws_nothing(make_step: Any, rows: int, expected: list[int]) -> None:
    step = make_step(rows=rows)
    before = step.generator.get_state()
    assert reversed_batch(step).tolist() == expected
    assert (step.generator.get_state() == before).all()
