"""Which samples share a batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calmix.mixing.sampling import Pool, two_sided, uniform


def _pool(n: int, batch_size: int, *, seed: int = 0, counts: NDArray[np.int64] | None = None) -> Pool:
    lengths = np.random.default_rng(1000).integers(3, 200, n)
    return Pool(lengths, counts, batch_size, np.random.default_rng(seed), np.random.default_rng(0))


@given(n=st.integers(1, 700), batch_size=st.integers(1, 40), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_each_sample_is_in_one_batch_and_one_batch_at_most_is_partial(n: int, batch_size: int, seed: int) -> None:
    batches = uniform(_pool(n, batch_size, seed=seed))
    assert sorted(np.concatenate(batches)) == list(range(n))
    partial = [len(batch) for batch in batches if len(batch) < batch_size]
    assert partial == ([n % batch_size] if n % batch_size else [])


@given(n=st.integers(1, 5000), batch_size=st.integers(1, 40), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_even_batches_are_as_many_and_differ_by_one_row_at_most(n: int, batch_size: int, seed: int) -> None:
    batches = uniform(replace(_pool(n, batch_size, seed=seed), even=True))
    assert sorted(np.concatenate(batches)) == list(range(n))
    sizes = [len(batch) for batch in batches]
    assert len(sizes) == -(-n // batch_size)
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("cycle", [False, True])
def test_even_halves_keep_to_their_sides(cycle: bool) -> None:
    side = np.array([0] * 21 + [1] * 30)
    rng = np.random.default_rng(0)
    batches = two_sided("side", cycle=cycle)(Pool(np.full(51, 5), None, 8, rng, rng, {"side": side}, even=True))
    for batch in batches:
        sides = side[batch]
        half = len(batch) // 2
        assert (sides == 1).all() or (len(set(sides[:half])) == len(set(sides[half:])) == 1 and len(batch) % 2 == 0)
    assert set(np.concatenate(batches)) == set(range(51))


def test_rows_of_a_batch_are_of_similar_length() -> None:
    pool = _pool(4000, 16)
    spread = np.mean([np.ptp(pool.lengths[batch]) for batch in uniform(pool)])
    by_chance = np.mean([np.ptp(pool.lengths[i : i + 16]) for i in range(0, 4000, 16)])
    assert spread < by_chance / 10


def test_batches_come_in_random_order_of_length() -> None:
    pool = _pool(3200, 16)
    means = [pool.lengths[batch].mean() for batch in uniform(pool)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3


def test_who_meets_whom_changes_with_the_draw() -> None:
    first, second = uniform(_pool(2000, 8, seed=0)), uniform(_pool(2000, 8, seed=1))
    together = {frozenset(batch.tolist()) for batch in first} & {frozenset(batch.tolist()) for batch in second}
    assert not together


def test_the_generator_alone_decides() -> None:
    one, same = uniform(_pool(500, 16, seed=3)), uniform(_pool(500, 16, seed=3))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))


@pytest.mark.parametrize("n", [7, 300])
def test_only_rows_with_equally_many_choices_share_a_batch(n: int) -> None:
    counts = np.random.default_rng(5).integers(2, 6, n)
    batches = uniform(_pool(n, 8, counts=counts))
    assert sorted(np.concatenate(batches)) == list(range(n))
    assert all(len(set(counts[batch])) == 1 for batch in batches)
    for count in set(counts):
        sizes = [len(batch) for batch in batches if counts[batch[0]] == count]
        assert sum(size < 8 for size in sizes) <= 1


def test_one_sample_is_one_batch() -> None:
    assert [batch.tolist() for batch in uniform(_pool(1, 32))] == [[0]]


def _sides(lengths: int, side: list[int], **options: Any) -> Pool:
    rng = np.random.default_rng(options.pop("seed", 0))
    return Pool(rng.integers(3, 30, lengths), None, 8, rng, rng, {"side": np.array(side)})


def test_a_two_sided_batch_holds_half_of_each_side() -> None:
    side = [0] * 40 + [1] * 40 + [-1] * 20
    batches = two_sided("side", cycle=True)(_sides(100, side))
    for batch in batches:
        assert [side[i] for i in batch] == [0] * (len(batch) // 2) + [1] * (len(batch) // 2)
    assert sorted(np.concatenate(batches)) == list(range(80))


def test_the_shorter_side_is_gone_through_again_until_the_longer_one_is_through() -> None:
    side = [0] * 10 + [1] * 33
    rows = np.concatenate(two_sided("side", cycle=True)(_sides(43, side)))
    counts = np.bincount(rows, minlength=43)
    assert (counts[10:] == 1).all()
    assert set(counts[:10]) <= {3, 4}
    assert counts[:10].sum() == 33


def test_without_cycling_what_is_left_follows_on_its_own_and_each_sample_appears_once() -> None:
    side = [0] * 10 + [1] * 33
    batches = two_sided("side", cycle=False)(_sides(43, side))
    assert sorted(np.concatenate(batches)) == list(range(43))
    assert max(map(len, batches)) == 8


def test_a_side_with_nobody_or_fewer_than_half_a_batch_still_gives_batches() -> None:
    for side in ([1] * 9, [0] + [1] * 8):
        batches = two_sided("side", cycle=True)(_sides(9, side))
        assert set(np.concatenate(batches)) == set(range(9))


def test_a_two_sided_sampling_without_its_signal_is_uniform() -> None:
    pool, same = (Pool(np.arange(50), None, 8, np.random.default_rng(3), np.random.default_rng(0)) for _ in range(2))
    assert [b.tolist() for b in two_sided("side", cycle=True)(pool)] == [b.tolist() for b in uniform(same)]
