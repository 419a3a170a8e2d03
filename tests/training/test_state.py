"""Checkpoints of an unfinished run: whole, checked, and two of them kept."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calmix.training.optimising import adamw, optimizer_for
from calmix.training.state import latest, load_optimizer, optimizer_tensors, save_state


def save(folder: Path, step: int) -> None:
    save_state(folder, step, {"weights": {"w": torch.full((2,), float(step))}}, {"step": step})


def test_the_newest_is_read_and_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10, 100):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000100"]
    found = latest(tmp_path)
    assert found is not None
    assert found[0]["weights"]["w"].tolist() == [100.0, 100.0]
    assert found[1] == {"step": 100}


def test_there_may_be_none(tmp_path: Path) -> None:
    assert latest(tmp_path / "nowhere") is None
    (tmp_path / "step-00000001").mkdir()
    assert latest(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", '{"sha256": {"gone.safetensors": ""}, "facts": {}}'])
def test_one_that_cannot_be_read_is_passed_over(tmp_path: Path, content: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "step-00000002" / "state.json").write_text(content)
    found = latest(tmp_path)
    assert found is not None
    assert found[1] == {"step": 1}


def test_what_was_being_written_when_the_lights_went_out_is_not_seen(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001").rename(tmp_path / ".step-00000001")
    assert latest(tmp_path) is None


def test_a_checkpoint_that_could_not_be_written_leaves_nothing_and_the_one_before_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("calmix.training.state.write_text", full)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert latest(tmp_path) is not None


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save_state(tmp_path, 1, {"weights": {}}, {"second": True})
    found = latest(tmp_path)
    assert found is not None
    assert found[1] == {"second": True}


def test_tied_weights_are_saved_under_each_of_their_names(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    save_state(tmp_path, 1, {"weights": model.state_dict()}, {})
    other = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    other["b"].weight = other["a"].weight
    found = latest(tmp_path)
    assert found is not None
    other.load_state_dict(found[0]["weights"])
    assert torch.equal(other["a"].weight, model["a"].weight)
    assert other["b"].weight is other["a"].weight


def test_views_of_one_tensor_are_saved_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    save_state(tmp_path, 1, {"weights": {"low": base[:3], "high": base[3:]}}, {})
    found = latest(tmp_path)
    assert found is not None
    assert found[0]["weights"]["high"].tolist() == [3, 4, 5]


def test_the_state_is_strict_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save_state(tmp_path, 1, {}, {"best": float("-inf")})
    save(tmp_path, 1)
    state = json.loads((tmp_path / "step-00000001" / "state.json").read_text())
    assert set(state) == {"step", "sha256", "facts"}


def test_an_optimiser_goes_on_where_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = adamw(model.parameters(), lr=0.1, weight_decay=0.1)

    def learn(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    learn(model, optimizer)
    save_state(tmp_path, 1, {"weights": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}, {})
    learn(model, optimizer)
    other = nn.Linear(3, 2)
    resumed = adamw(other.parameters(), lr=0.1, weight_decay=0.1)
    found = latest(tmp_path)
    assert found is not None
    other.load_state_dict(found[0]["weights"])
    load_optimizer(resumed, found[0]["optimizer"])
    learn(other, resumed)
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_an_optimiser_goes_on_as_if_it_had_not_been_saved_whatever_the_layout_of_the_weights(
    name: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    batches = torch.randn(4, 2, 3, 8, 8)
    stayed = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    saved = copy.deepcopy(stayed)
    first = optimizer_for(name, stayed.parameters(), lr=0.1, weight_decay=0.1)
    second = optimizer_for(name, saved.parameters(), lr=0.1, weight_decay=0.1)
    for step, batch in enumerate(batches):
        if step == 2:
            save_state(tmp_path, step, {"optimizer": optimizer_tensors(second)}, {})
            found = latest(tmp_path)
            assert found is not None
            second = optimizer_for(name, saved.parameters(), lr=0.1, weight_decay=0.1)
            load_optimizer(second, found[0]["optimizer"])
        for model, optimizer in ((stayed, first), (saved, second)):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
    assert torch.equal(stayed.weight, saved.weight)
