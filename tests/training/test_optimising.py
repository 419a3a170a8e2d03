"""The optimiser, the learning rate, and settings that cannot be meant."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calmix.errors import InputError
from calmix.training.optimising import (
    adamw,
    check_hyper,
    gradient_norms,
    lay_out_gradients,
    learning_rate,
    optimizer_for,
    set_learning_rate,
    sgd,
    update_unless_bad,
)


def rates(steps: int, warmup: float, schedule: Any) -> list[float]:
    return [learning_rate(s, steps=steps, peak=1.0, warmup=warmup, schedule=schedule) for s in range(steps)]


def test_the_rate_rises_then_falls_in_straight_lines() -> None:
    np.testing.assert_allclose(rates(10, 0.4, "linear"), [0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_the_rate_rises_then_stays() -> None:
    assert rates(6, 0.5, "constant") == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert rates(4, 0.0, "linear") == [1.0, 0.75, 0.5, 0.25]
    assert rates(4, 0.0, "constant") == [1.0] * 4


@pytest.mark.parametrize("schedule", ["linear", "constant", "steps"])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
def test_the_rate_is_above_0_and_never_above_the_peak(steps: int, warmup: float, schedule: Any) -> None:
    assert all(0 < rate <= 1 for rate in rates(steps, warmup, schedule))


def test_the_rate_never_falls_below_0_past_the_planned_end() -> None:
    assert learning_rate(12, steps=10, peak=1.0, warmup=0.1, schedule="linear") == 0


def test_biases_and_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    groups = adamw(model.parameters(), lr=1e-3, weight_decay=0.1).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (3, 0.0)]


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    assert sum(len(g["params"]) for g in adamw(model.parameters(), lr=1e-3, weight_decay=0.1).param_groups) == 2


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_bad_norm_skips_the_update_and_a_good_one_does_not(norm: float) -> None:
    model = nn.Linear(2, 1)
    optimizer = adamw(model.parameters(), lr=0.1, weight_decay=0.0)
    for value, moved in ((norm, False), (1.0, True)):
        before = model.weight.detach().clone()
        model(torch.ones(1, 2)).sum().backward()
        assert float(update_unless_bad([optimizer], torch.tensor([value]), clip=1.0)) == float(not moved)
        assert torch.equal(before, model.weight) is not moved


@pytest.mark.parametrize("clip", [0.01, 1.0, float("inf")])
def test_updates_are_those_of_clipped_gradients(clip: float) -> None:
    torch.manual_seed(0)
    ours = [nn.Linear(4, 3) for _ in range(2)]
    theirs = copy.deepcopy(ours)
    optimizers = [adamw(model.parameters(), lr=0.1, weight_decay=0.1) for model in ours]
    others = [torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0) for model in theirs]
    for other in others:  # biases are not decayed
        other.add_param_group({"params": [], "weight_decay": 0.0})
        weight, bias = other.param_groups[0]["params"]
        other.param_groups[0].update(params=[weight], weight_decay=0.1)
        other.param_groups[1]["params"] = [bias]
    for _ in range(3):
        for run, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            x = (1 + run) * torch.randn(5, 4)
            a(x).square().sum().backward()
            b(x).square().sum().backward()
            nn.utils.clip_grad_norm_(b.parameters(), clip)
            others[run].step()
            others[run].zero_grad()
        norms = gradient_norms(optimizers)
        expected = [nn.utils.get_total_norm([p.grad for p in model.parameters()]) for model in ours]
        torch.testing.assert_close(norms, torch.stack(expected))
        update_unless_bad(optimizers, norms, clip=clip)
        for optimizer in optimizers:
            optimizer.zero_grad()
    for a, b in zip(ours, theirs, strict=True):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_a_run_gone_bad_does_not_touch_the_one_beside_it() -> None:
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [adamw(model.parameters(), lr=0.1, weight_decay=0.0) for model in models]
    before = [model.weight.detach().clone() for model in models]
    models[0](torch.full((1, 2), torch.nan)).sum().backward()
    models[1](torch.ones(1, 2)).sum().backward()
    assert update_unless_bad(optimizers, gradient_norms(optimizers), clip=1.0).tolist() == [1.0, 0.0]
    assert torch.equal(models[0].weight, before[0])
    assert not torch.equal(models[1].weight, before[1])


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_rate_is_set_for_every_group(groups: int) -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(groups)]
    # On a GPU a rate is a tensor, which captured steps read.
    rates = [torch.tensor(0.1) for _ in weights]
    several = [torch.optim.SGD([{"params": [w], "lr": r}]) for w, r in zip(weights, rates, strict=True)]
    plain = adamw(nn.Linear(2, 1).parameters(), lr=0.1, weight_decay=0.0)
    set_learning_rate([plain, *several], 0.5)
    assert [float(g["lr"]) for g in plain.param_groups] == [0.5, 0.5]
    assert [float(rate) for rate in rates] == [0.5] * groups
    assert all(one.param_groups[0]["lr"] is rate for one, rate in zip(several, rates, strict=True))


def test_settings_come_back_as_plain_numbers() -> None:
    found = check_hyper({"epochs": np.int64(3), "lr": np.float32(0.5), "select": "mcc", "guarantee": None})
    assert found == {"epochs": 3, "lr": 0.5, "select": "mcc", "guarantee": None}
    assert [type(value) for value in found.values()] == [int, float, str, type(None)]


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": -1},
        {"folds": -1},
        {"folds": 2.5},
        {"head": "trained"},
        {"pooling": "max"},
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


@pytest.mark.parametrize("clip", [0.1, float("inf")])
@pytest.mark.parametrize("momentum_steps", [1, 4])
def test_sgd_has_nesterov_momentum_and_decays_everything(momentum_steps: int, clip: float) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    theirs = copy.deepcopy(ours)
    optimizer = optimizer_for("sgd", ours.parameters(), lr=0.1, weight_decay=0.05)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05)
    for _ in range(momentum_steps):
        batch = torch.randn(5, 4)
        for model in (ours, theirs):
            model.zero_grad()
            model(batch).square().sum().backward()
        update_unless_bad([optimizer], gradient_norms([optimizer]), clip=clip)
        nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        other.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_sgd_skips_a_bad_first_step_and_remembers_nothing_of_it() -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model.parameters(), lr=0.1, weight_decay=0.0)
    before = model.weight.detach().clone()
    (model(torch.full((1, 2), torch.inf)).sum() * 0).backward()
    assert float(update_unless_bad([optimizer], gradient_norms([optimizer]), clip=1.0)) == 1
    assert torch.equal(before, model.weight)
    assert not any(slots["momentum_buffer"].any() for slots in optimizer.state.values())


def test_the_rate_is_halved_four_times_as_thulasidasan_et_al_do() -> None:
    found = rates(200, 0.0, "steps")
    assert [step for step in range(1, 200) if found[step] != found[step - 1]] == [2, 60, 120, 160]
    assert (found[0], found[199]) == (1.0, 1 / 16)


def test_gradients_are_laid_out_as_their_weights() -> None:
    weight = nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
    optimizer = sgd([weight], lr=0.1, weight_decay=0.0)
    gradient = torch.randn(4, 3, 3, 3)
    weight.grad = gradient
    lay_out_gradients([optimizer])
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, gradient)
