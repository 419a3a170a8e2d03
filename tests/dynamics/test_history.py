"""The history by epoch, as a value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.dynamics.history import MOST_EPOCHS, History, every


@given(st.integers(0, 10_000))
def test_so_many_epochs_and_no_more_are_remembered(epochs: int) -> None:
    step = every(epochs)
    assert epochs // step <= MOST_EPOCHS
    assert step == 1 or 2 * (epochs // step) >= MOST_EPOCHS


def test_codes_say_how_probable_and_whether_right() -> None:
    history = History((1, 2, 3), np.array([[0, 128 + 100, 255]], dtype=np.uint8))
    np.testing.assert_array_equal(history.probability, [[0, 1, np.nan]])
    assert history.right.tolist() == [[False, True, False]]


@given(st.integers(1, 80), st.integers(1, 40))
def test_a_thinned_history_keeps_both_ends(epochs: int, most: int) -> None:
    history = History(tuple(range(1, epochs + 1)), np.arange(epochs, dtype=np.uint8)[None])
    few = history.thinned(most)
    assert len(few.epochs) <= most or epochs <= most
    assert few.epochs[0] == 1
    assert most == 1 or few.epochs[-1] == epochs
    assert few.codes[0].tolist() == [epoch - 1 for epoch in few.epochs]


def test_a_column_is_read_back() -> None:
    import pyarrow as pa

    history = History((2, 4), np.arange(6, dtype=np.uint8).reshape(3, 2))
    column = pa.chunked_array([history.to_column()])
    assert column.to_pylist() == [[0, 1], [2, 3], [4, 5]]
    np.testing.assert_array_equal(History.from_column(column, (2, 4)).codes, history.codes)


def test_epochs_and_codes_belong_together() -> None:
    with pytest.raises(ValueError, match="2 epochs"):
        History((1, 2), np.zeros((3, 1), dtype=np.uint8))
