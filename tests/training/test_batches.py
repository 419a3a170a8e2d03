"""An epoch laid out over steps, parts and processes."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.mixing import choose
from calmix.models import Preparation, encode, pack_images
from calmix.training.batches import Part, TrainingSet, epoch_steps, training_set


def packed(rows: int, kind: str = "text") -> TrainingSet:
    data = tiny.examples(rows, kind=kind)
    return training_set(data, encode(data, tiny.tokenizer(), max_length=32))


def layout(data: TrainingSet, epoch: int = 0, **changes: Any) -> list[list[Part]]:
    options: dict[str, Any] = {"batch_size": 8, "accumulate": 1, "seed": 0, "rank": 0, "world": 1}
    return list(epoch_steps(data, choose("erm"), epoch, **(options | changes)))


def rows_of(step: list[Part]) -> list[int]:
    return [int(row) for part in step if part.counts for row in part.rows]


def test_every_row_comes_once_an_epoch() -> None:
    steps = layout(packed(29))
    assert sorted(row for step in steps for row in rows_of(step)) == list(range(29))
    assert sorted(len(rows_of(step)) for step in steps) == [5, 8, 8, 8]


def test_images_come_in_batches_of_even_size_for_the_sake_of_batch_norm() -> None:
    data = tiny.images(25)
    steps = layout(training_set(data, pack_images(data, Preparation(8, 8, (0.5,) * 3, (0.5,) * 3))))
    assert sorted(row for step in steps for row in rows_of(step)) == list(range(25))
    assert sorted(len(rows_of(step)) for step in steps) == [6, 6, 6, 7]


def test_epochs_differ_and_the_seed_decides_how() -> None:
    data = packed(29)
    assert [rows_of(s) for s in layout(data)] == [rows_of(s) for s in layout(data)]
    assert [rows_of(s) for s in layout(data)] != [rows_of(s) for s in layout(data, epoch=1)]
    assert [rows_of(s) for s in layout(data)] != [rows_of(s) for s in layout(data, seed=1)]


@pytest.mark.parametrize("world", [2, 3, 8, 11])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_processes_share_each_batch_between_them(world: int, accumulate: int) -> None:
    data = packed(29)
    alone = layout(data)
    shared = [layout(data, rank=rank, world=world, accumulate=accumulate) for rank in range(world)]
    for number, step in enumerate(alone):
        together = [row for ranks in shared for row in rows_of(ranks[number])]
        assert sorted(together) == sorted(rows_of(step))
        for ranks in shared:
            # Each takes part in the exchange of gradients exactly once, with or without rows.
            assert [part.last for part in ranks[number]].count(True) == 1
            assert ranks[number][-1].last
            assert {part.batch for part in ranks[number]} == {len(rows_of(step))}


def test_parts_are_as_wide_as_their_own_longest_text() -> None:
    data = packed(29)
    for step in layout(data, accumulate=3):
        for part in step:
            longest = data.packed.host_lengths[part.rows.numpy()].max()
            assert longest <= part.width < longest + 8


def test_rows_with_as_many_choices_go_together() -> None:
    data = packed(20, "choices")
    assert data.packed.counts is not None
    for step in layout(data, accumulate=2, world=2, rank=1):
        for part in step:
            assert {int(data.packed.counts[row]) for row in part.rows} == {part.choices}
            assert data.targets_of(part.rows, part.choices).shape == (len(part.rows), part.choices)


def test_targets_are_one_hot_or_what_was_given() -> None:
    data = packed(6)
    np.testing.assert_array_equal(data.targets_of(torch.tensor([1, 3]), None), [[0, 1, 0], [1, 0, 0]])
    soft = TrainingSet(data.packed, data.labels, 3, targets=torch.full((6, 3), 1 / 3))
    assert float(soft.targets_of(torch.tensor([2]), None)[0, 0]) == pytest.approx(1 / 3)


def test_each_part_and_each_process_gets_some_of_both_halves_of_a_two_sided_batch() -> None:
    data, side = packed(40), np.arange(40) % 2
    for world, accumulate in ((1, 4), (2, 2)):
        for rank in range(world):
            steps = epoch_steps(
                data,
                choose("aum-saliency"),
                0,
                batch_size=16,
                accumulate=accumulate,
                seed=0,
                rank=rank,
                world=world,
                signals={"side": side},
            )
            for parts in list(steps):
                for part in parts:
                    if part.batch == 16:
                        assert set(side[part.rows.numpy()]) == {0, 1}


def test_targets_are_the_labels_and_nothing_where_there_is_none() -> None:
    data = packed(6)
    data.labels[2] = -1
    targets = data.targets_of(torch.tensor([1, 2, 5]), None)
    assert targets.dtype == torch.float32
    assert targets.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert packed(6, "choices").targets_of(torch.tensor([0, 3]), 2).shape == (2, 2)
