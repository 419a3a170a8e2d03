"""Confidence and accuracy by epoch."""

from typing import Any

import numpy as np
import pytest

from calmix.errors import InputError
from calmix.report import draw_joint, prepare_joint
from calmix.report.joint import density

HISTORY: list[dict[str, Any]] = [
    {"epoch": e, "joint": [[0.5 + e / 40, 0.5], [0.6 + e / 40, 0.55], [0.55 + e / 40, 0.6]]} for e in range(1, 11)
]


def test_five_epochs_are_shown_from_the_first_to_the_last_or_those_asked_for() -> None:
    table = prepare_joint({"run": HISTORY})
    assert list(dict.fromkeys(table["epoch"].to_pylist())) == [1, 3, 5, 7, 10]
    some = prepare_joint({"run": HISTORY, "other": HISTORY[:4]}, epochs=[2, 4])
    assert list(dict.fromkeys(some["epoch"].to_pylist())) == [2, 4]
    assert len(some) == 12
    with pytest.raises(InputError, match="has no epoch 5"):
        prepare_joint({"run": HISTORY, "other": HISTORY[:4]}, epochs=[5])
    with pytest.raises(InputError, match="by batch"):
        prepare_joint({"old": [{"epoch": 1}]})


def test_the_density_is_one_in_all_and_largest_where_the_points_are() -> None:
    rng = np.random.default_rng(0)
    grid = np.linspace(-1, 2, 301)
    found = density(rng.normal(0.8, 0.05, 200), rng.normal(0.3, 0.1, 200), grid)
    assert found.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(1, abs=0.01)
    row, column = np.unravel_index(found.argmax(), found.shape)
    assert (grid[column], grid[row]) == pytest.approx((0.8, 0.3), abs=0.1)


def test_each_run_has_a_row_of_panels() -> None:
    figure = draw_joint(prepare_joint({"plain": HISTORY, "mixup": HISTORY}, epochs=[1, 10]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"{run}, epoch {epoch}" for run in ("plain", "mixup") for epoch in (1, 10)
    ]


def test_epoch_0_is_called_before_fine_tuning() -> None:
    figure = draw_joint(prepare_joint({"run": [{"epoch": 0, "joint": HISTORY[0]["joint"]}, *HISTORY[:1]]}))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["run, before fine-tuning", "run, epoch 1"]
