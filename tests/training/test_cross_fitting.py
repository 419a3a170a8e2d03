"""A dev set for few rows: what networks say of the rows that they have not learnt from."""

import numpy as np
import pytest
import tiny
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from calmix.calibration import Temperature, nll
from calmix.data import Examples
from calmix.training.cross_fitting import FoldLogits, cross_fit
from calmix.training.keeping import Fit

_LABELS = np.arange(60) % 3
_RIGHT = np.eye(3, dtype=np.float32)[_LABELS]


def _said(sureness: float, wrong: int = 0) -> NDArray[np.float32]:
    """Return logits that are right, but for so many rows."""
    right = _RIGHT.copy()
    right[:wrong] = np.roll(right[:wrong], 1, axis=1)
    return sureness * right


def test_each_row_is_said_by_who_has_learnt_from_all_but_its_fold() -> None:
    examples, folds = tiny.examples(9), np.array([0, 1, 2] * 3)
    learnt: list[set[str]] = []

    def train_fold(learn: Examples, judge: Examples, fold: int) -> dict[int, NDArray[np.float32]]:
        learnt.append(set(learn.ids))
        assert not set(learn.ids) & set(judge.ids)
        where = [examples.ids.index(id_) for id_ in judge.ids]
        return {1: np.array([[fold, row, 0] for row in where], dtype=np.float32)}

    found = cross_fit(examples, folds, train_fold)
    assert_allclose(found.by_epoch[1], [[fold, row, 0] for row, fold in enumerate(folds)])
    assert [len(rows) for rows in learnt] == [6, 6, 6]


def test_rows_in_no_fold_are_always_learnt_from_and_not_judged() -> None:
    examples, folds = tiny.examples(5), np.array([0, 1, -1, 0, 1])
    alone = examples.ids[2]

    def train_fold(learn: Examples, judge: Examples, fold: int) -> dict[int, NDArray[np.float32]]:
        assert alone in learn.ids
        assert alone not in judge.ids
        return {0: np.full((len(judge), 3), fold, dtype=np.float32)}

    found = cross_fit(examples, folds, train_fold)
    assert found.by_epoch[0][:, 0].tolist() == [0, 1, 0, 1]
    assert_allclose(found.labels, examples.labels[[0, 1, 3, 4]])


def test_choices_that_a_row_does_not_have_are_not_there() -> None:
    examples, folds = tiny.examples(4, kind="choices", counts=(2, 3, 2, 3)), np.array([0, 1, 0, 1])

    def train_fold(learn: Examples, judge: Examples, fold: int) -> dict[int, NDArray[np.float32]]:
        return {1: np.ones((len(judge), 2 + fold), dtype=np.float32)}

    found = cross_fit(examples, folds, train_fold)
    assert np.isneginf(found.by_epoch[1][:, 2]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("select", ["nll-ts", "nll", "accuracy", "mcc"])
def test_the_last_epoch_is_kept_though_one_in_between_was_better(select: str) -> None:
    found = FoldLogits({0: _said(2, wrong=30), 1: _said(5), 2: _said(5, wrong=6)}, _LABELS)
    assert found.best_epoch(select) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("select", ["nll-ts", "nll", "accuracy", "mcc"])
def test_a_head_that_was_clearly_better_alone_is_kept(select: str) -> None:
    found = FoldLogits({0: _said(5), 1: _said(5, wrong=10), 2: _said(5, wrong=30)}, _LABELS)
    assert found.best_epoch(select) == 0  # type: ignore[arg-type]


def test_a_head_that_was_hardly_better_is_not_kept() -> None:
    one_row_more = FoldLogits({0: _said(5, wrong=6), 3: np.roll(_said(5, wrong=6), 3, axis=0)}, _LABELS)
    assert one_row_more.best_epoch("accuracy") == 3


def test_who_asks_for_the_last_epoch_gets_it() -> None:
    assert FoldLogits({0: _said(5), 4: _said(5, wrong=30)}, _LABELS).best_epoch("none") == 4


def test_the_head_alone_is_the_last_epoch_of_a_run_without_any() -> None:
    assert FoldLogits({0: _said(5)}, _LABELS).best_epoch("nll-ts") == 0


def test_the_history_tells_of_the_folds_in_the_place_of_dev_rows() -> None:
    found = FoldLogits({0: _said(2, wrong=30), 1: _said(5, wrong=6)}, _LABELS)
    before = Fit(history=[{"epoch": 0, "loss": None}, {"epoch": 1, "loss": 0.5}], best_epoch=1)
    told = found.told_in(before)
    assert [entry["loss"] for entry in told.history] == [None, 0.5]
    assert told.history[1]["dev"]["accuracy"] == 0.9
    fitted = Temperature.fit(found.by_epoch[1], _LABELS)
    assert told.history[1]["dev"]["nll-ts"] == pytest.approx(nll(fitted(found.by_epoch[1]), _LABELS))
    assert "dev" not in before.history[0]
