"""The optimiser, the learning rate, and settings that cannot be meant."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calmix.errors import InputError
from calmix.training.optimising import adamw, check_hyper, learning_rate, set_learning_rate, step_unless_bad


def rates(steps: int, warmup: float, schedule: Any) -> list[float]:
    return [learning_rate(s, steps=steps, peak=1.0, warmup=warmup, schedule=schedule) for s in range(steps)]


def test_the_rate_rises_then_falls_in_straight_lines() -> None:
    np.testing.assert_allclose(rates(10, 0.4, "linear"), [0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_the_rate_rises_then_stays() -> None:
    assert rates(6, 0.5, "constant") == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert rates(4, 0.0, "linear") == [1.0, 0.75, 0.5, 0.25]
    assert rates(4, 0.0, "constant") == [1.0] * 4


@pytest.mark.parametrize("schedule", ["linear", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
def test_the_rate_is_above_0_and_never_above_the_peak(steps: int, warmup: float, schedule: Any) -> None:
    assert all(0 < rate <= 1 for rate in rates(steps, warmup, schedule))


def test_the_rate_never_falls_below_0_past_the_planned_end() -> None:
    assert learning_rate(12, steps=10, peak=1.0, warmup=0.1, schedule="linear") == 0


def test_biases_and_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    groups = adamw(model, lr=1e-3, weight_decay=0.1).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (3, 0.0)]


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    assert sum(len(g["params"]) for g in adamw(model, lr=1e-3, weight_decay=0.1).param_groups) == 2


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_bad_norm_skips_the_update_and_a_good_one_does_not(norm: float) -> None:
    model = nn.Linear(2, 1)
    optimizer = adamw(model, lr=0.1, weight_decay=0.0)
    for value, moved in ((norm, False), (1.0, True)):
        before = model.weight.detach().clone()
        model(torch.ones(1, 2)).sum().backward()
        assert float(step_unless_bad(optimizer, torch.tensor(value))) == float(not moved)
        assert torch.equal(before, model.weight) is not moved


def test_the_rate_is_set_for_every_group() -> None:
    optimizer = adamw(nn.Linear(2, 1), lr=0.1, weight_decay=0.0)
    set_learning_rate(optimizer, 0.5)
    assert [float(g["lr"]) for g in optimizer.param_groups] == [0.5, 0.5]


def test_settings_come_back_as_plain_numbers() -> None:
    found = check_hyper({"epochs": np.int64(3), "lr": np.float32(0.5), "select": "mcc", "guarantee": None})
    assert found == {"epochs": 3, "lr": 0.5, "select": "mcc", "guarantee": None}
    assert [type(value) for value in found.values()] == [int, float, str, type(None)]


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"epochs": 2.0},
        {"batch_size": 0},
        {"accumulate": -1},
        {"lr": 1.1},
        {"lr": float("inf")},
        {"warmup": -0.1},
        {"weight_decay": float("nan")},
        {"dev_fraction": 0.0},
        {"guarantee": 0.0},
        {"schedule": "cosine"},
        {"lr": "x"},
    ],
)
def test_what_cannot_be_meant_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"--{next(iter(bad)).replace('_', '-')} must"):
        check_hyper(bad)
