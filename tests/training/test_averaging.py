"""Averages of weights: their mean, where they go, and that a resumed run goes on with them."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch import nn

from calmix.errors import InputError
from calmix.recipes import Recipe, clean
from calmix.training import train
from calmix.training.averaging import Averaged
from calmix.training.loop import fit
from calmix.training.together import train_together


def set_to(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(value)


def test_it_is_the_plain_mean_first_and_forgets_afterwards() -> None:
    model = nn.Linear(2, 1)
    averaged = Averaged([model], 0.4, 10)
    expected = 0.0
    for step in range(1, 8):
        set_to(model, float(step))
        averaged.update()
        expected += (step - expected) / min(step, 4)
        if step == 4:
            assert expected == 2.5
    with averaged.in_place():
        torch.testing.assert_close(model.weight, torch.full((1, 2), expected))
    assert model.weight.tolist() == [[7, 7]]


def test_several_models_have_each_their_own_and_buffers_count() -> None:
    models = [nn.BatchNorm1d(2), nn.BatchNorm1d(2)]
    averaged = Averaged(models, 1.0, 10)
    for step in (1.0, 3.0):
        for place, model in enumerate(models):
            model.running_mean.fill_(step + place)  # type: ignore[union-attr, operator]
        averaged.update()
    with averaged.in_place():
        assert [model.running_mean.tolist() for model in models] == [[2, 2], [3, 3]]  # type: ignore[union-attr, operator]


def test_no_share_is_no_average() -> None:
    model = nn.Linear(1, 1)
    averaged = Averaged([model], 0.0, 100)
    set_to(model, 3.0)
    averaged.update()
    with averaged.in_place():
        assert model.weight.item() == 3
    assert averaged.means == []


def test_weights_come_back_after_an_error() -> None:
    model = nn.Linear(1, 1)
    averaged = Averaged([model], 0.5, 4)
    set_to(model, 5.0)
    with pytest.raises(ZeroDivisionError), averaged.in_place():
        raise ZeroDivisionError
    assert model.weight.item() == 5


def asked(model: Path, out: Path, seed: int = 0, **more: Any) -> dict[str, Any]:
    sets = {"train": tiny.examples(45), "dev": tiny.examples(12, seed=1), "test": tiny.examples(12, seed=2)}
    return (
        sets | {"model": model, "out": out / str(seed), "seed": seed, "epochs": 2, "batch_size": 8, "lr": 1e-3} | more
    )


def test_the_average_is_what_is_measured_and_saved(calm: Path, tmp_path: Path) -> None:
    """With a memory of one step it is the last weights; with a longer one, other weights."""
    plain, short, long = (
        load_file(train(**asked(calm, tmp_path / str(share), average=share)).model / "model.safetensors")
        for share in (0.0, 1e-6, 0.5)
    )
    assert all(torch.equal(plain[name], short[name]) for name in plain)
    assert not all(torch.equal(plain[name], long[name]) for name in plain)


def test_a_recipe_averages_by_itself_unless_told_otherwise(calm: Path, tmp_path: Path) -> None:
    recipe = Recipe(clean(), average=0.5)
    own, told, plain = (
        load_file(train(**asked(calm, tmp_path / name, **more)).model / "model.safetensors")
        for name, more in (
            ("own", {"recipe": recipe}),
            ("told", {"average": 0.5}),
            ("plain", {"recipe": recipe, "average": 0}),
        )
    )
    assert all(torch.equal(own[name], told[name]) for name in own)
    assert not all(torch.equal(own[name], plain[name]) for name in own)


def test_side_by_side_it_is_what_it_is_alone(calm: Path, tmp_path: Path) -> None:
    beside = train_together([asked(calm, tmp_path / "b", seed, average=0.5) for seed in range(2)], on_cpu=True)
    for seed, run in enumerate(beside):
        assert not isinstance(run, Exception)
        alone = train(**asked(calm, tmp_path / "a", seed, average=0.5))
        one, other = (load_file(each.model / "model.safetensors") for each in (alone, run))
        for name, weight in one.items():
            if not name.endswith("key.bias"):
                torch.testing.assert_close(other[name], weight, rtol=2e-2, atol=2e-3, msg=name)


def test_a_resumed_run_ends_as_the_whole_one(calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"recipe": "tdmixup", "online": True, "average": 0.5, "epochs": 3}
    whole = train(**asked(calm, tmp_path / "whole", checkpoint_epochs=1, **options))
    steps = 0

    def stop(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 9:
            raise KeyboardInterrupt
        return update(*args, **kwargs)

    update = Averaged.update
    monkeypatch.setattr(Averaged, "update", stop)
    with pytest.raises(BaseException, match="stopped at step"):
        train(**asked(calm, tmp_path / "cut", checkpoint_epochs=1, **options))
    monkeypatch.undo()
    again = train(**asked(calm, tmp_path / "cut", checkpoint_epochs=1, **options))
    one, other = (load_file(run.model / "model.safetensors") for run in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_share_above_one_is_refused(calm: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--average must be between 0 and 1"):
        train(**asked(calm, tmp_path, average=1.5))
    assert fit.__kwdefaults__["average"] == 0.0
