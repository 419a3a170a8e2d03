"""Who is mixed with whom."""

from typing import Any

import numpy as np
import pytest
import torch

from calmix.mixing.pairing import across, by_saliency, reversed_batch, shuffled, sides


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


@pytest.mark.parametrize("side", [[0, 0, 1, 1, 0, 1], [0, 1, 1, 1, 1, -1], [0, 0, 0, 0, 0, 1], [-1, 1, -1, 0, 0, 1]])
def test_across_gives_everyone_someone_of_the_other_side_as_evenly_as_they_go(make_step: Any, side: list[int]) -> None:
    codes = torch.tensor(side)
    partner = across(make_step(rows=6), codes)
    for i, j in enumerate(partner.tolist()):
        assert j == i if side[i] < 0 else {side[i], side[j]} == {0, 1}
    for code in (0, 1):
        taken = np.bincount(partner[codes == code].numpy(), minlength=6)[codes.numpy() == 1 - code]
        assert taken.max() - taken.min() <= 1


def test_across_leaves_everyone_alone_where_one_side_is_missing(make_step: Any) -> None:
    assert across(make_step(rows=5), torch.tensor([1, 1, 1, -1, 1])).tolist() == [0, 1, 2, 3, 4]


def test_across_is_drawn_from_the_generator(make_step: Any) -> None:
    codes = torch.tensor([0, 1] * 10)
    step, again = make_step(rows=20), make_step(rows=20)
    first = across(step, codes)
    assert torch.equal(first, across(again, codes))
    assert not torch.equal(first, across(step, codes))


def test_sides_without_a_signal_are_two_halves_drawn_at_random(make_step: Any) -> None:
    step = make_step(rows=7)
    drawn = [sides(step, "side") for _ in range(4)]
    assert {int(side.sum()) for side in drawn} == {3}
    assert any(not torch.equal(drawn[0], other) for other in drawn[1:])


PAIRINGS = {
    "shuffled": shuffled,
    "reversed": reversed_batch,
    "across": lambda step: across(step, sides(step, "side")),
    "most similar": lambda step: by_saliency(step, sides(step, "side"))[0],
    "most dissimilar": lambda step: by_saliency(step, sides(step, "side"))[1],
}


@pytest.mark.parametrize("name", PAIRINGS)
@pytest.mark.parametrize("runs", [2, 3, 4])
def test_nobody_is_paired_across_runs_that_share_a_step(make_step: Any, name: str, runs: int) -> None:
    step = make_step(rows=12)
    step.runs = runs
    for _ in range(5):
        partner = PAIRINGS[name](step)
        assert (partner // step.size).tolist() == (torch.arange(12) // step.size).tolist()


@pytest.mark.parametrize("runs", [2, 3])
def test_each_run_of_a_step_is_paired_as_if_it_were_alone(make_step: Any, runs: int) -> None:
    side = torch.tensor([0, 1, 1, -1, 0, 1] * runs)
    step = make_step(rows=6 * runs)
    step.runs = runs
    halves = sides(step, "none").view(runs, 6)
    assert halves.sum(1).tolist() == [3] * runs
    for rows, partners in zip(torch.arange(6 * runs).view(runs, 6), across(step, side).view(runs, 6), strict=True):
        for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
            assert partner == row if side[row] < 0 else {int(side[row]), int(side[partner])} == {0, 1}


def test_the_weight_of_a_batch_is_one_for_each_run(make_step: Any) -> None:
    step = make_step(rows=12)
    step.runs = 3
    weight = step.beta(0.4).view(3, 4)
    assert (weight == weight[:, :1]).all()
    assert len(set(weight[:, 0].tolist())) == 3
    assert len(set(step.beta(0.4, per_sample=True).tolist())) == 12
