"""What is kept of a run, in memory and on disk."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from calmix.training import keeping
from calmix.training.keeping import Fit, Keeper
from calmix.training.optimising import adamw


class Counting:
    """Stands in for a stepper: counts instead of training."""

    def __init__(self, model: nn.Module) -> None:
        self.accelerator, self.optimizer = Accelerator(), adamw(model.parameters(), lr=0.1, weight_decay=0.0)
        self.seen, self.progress, self.guidance = 16, (8, 1 / 3), None

    def read(self, _out: Any) -> tuple[int, float]:
        return self.progress

    def restart(self, rows: int = 0, loss: float = 0.0) -> None:
        self.progress = (rows, loss)


def keeper_for(model: nn.Module, out: Path | None) -> Keeper:
    return Keeper(model, Counting(model), out, minutes=0.0)  # type: ignore[arg-type]


def test_the_best_weights_are_kept_and_the_later_of_equals() -> None:
    model = nn.Linear(1, 1)
    keeper = keeper_for(model, None)
    for epoch, worth in enumerate([0.5, 0.7, 0.7, 0.6], start=1):
        keeper.run.epoch = epoch
        with torch.no_grad():
            model.weight.fill_(epoch)
        keeper.judge(worth)
    keeper.restore_best()
    assert (keeper.run.best_epoch, keeper.run.best_score, model.weight.item()) == (3, 0.7, 3.0)


def test_tied_weights_and_buffers_are_restored() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2)})
    model["b"].weight = model["a"].weight
    keeper = keeper_for(model, None)
    keeper.judge(1.0)
    kept = model["a"].weight.detach().clone()
    with torch.no_grad():
        model["a"].weight.zero_()
        model["norm"].running_mean.fill_(9)
    keeper.restore_best()
    assert torch.equal(model["b"].weight, kept)
    assert model["b"].weight is model["a"].weight
    assert float(model["norm"].running_mean.sum()) == 0


def test_what_was_saved_is_resumed_with_everything(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    keeper = keeper_for(model, tmp_path)
    keeper.run.step, keeper.run.epoch, keeper.run.history = 5, 1, [{"epoch": 1, "loss": 0.1}]
    keeper.judge(0.25)
    keeper.read()
    assert keeper.save()
    other = nn.Linear(2, 1)
    resumed = keeper_for(other, tmp_path)
    resumed.resume()
    assert vars(resumed.run) == vars(keeper.run)
    assert torch.equal(other.weight, model.weight)
    assert resumed.best is not None
    assert resumed.stepper.read(None) == (8, 1 / 3)
    assert resumed.seconds() >= keeper.run.seconds


def test_before_the_first_step_there_is_nothing_to_save(tmp_path: Path) -> None:
    keeper = keeper_for(nn.Linear(1, 1), tmp_path)
    assert not keeper.save()
    assert list(tmp_path.iterdir()) == []
    keeper.resume()
    assert vars(keeper.run) == vars(Fit())


def test_a_checkpoint_is_due_after_so_many_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("calmix.training.keeping.time.monotonic", lambda: now[0])
    keeper = Keeper(nn.Linear(1, 1), Counting(nn.Linear(1, 1)), tmp_path, minutes=2.0)  # type: ignore[arg-type]
    keeper.run.step = 1
    keeper.save_if_due()
    assert list(tmp_path.iterdir()) == []
    now[0] += 121
    keeper.save_if_due()
    assert (tmp_path / "checkpoints" / "step-00000001").is_dir()
    keeper.run.step = 2
    keeper.save_if_due()
    assert not (tmp_path / "checkpoints" / "step-00000002").exists()


@pytest.mark.parametrize(("main", "counted"), [(True, (20, 3.5)), (False, (0, 0.0))])
def test_amid_an_epoch_the_main_process_is_given_what_all_have_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: bool, counted: tuple[int, float]
) -> None:
    """Else it would be counted again by those who counted it, at the epoch's end."""
    gathered = []
    keeper = keeper_for(nn.Linear(1, 1), tmp_path)
    keeper.main = main
    keeper.stepper.accelerator = SimpleNamespace(num_processes=2)  # type: ignore[assignment]
    keeper.stepper.guidance = SimpleNamespace(  # type: ignore[assignment]
        gather=lambda: gathered.append(1), tensors=lambda: {"a": torch.ones(1)}
    )
    monkeypatch.setattr(keeping, "over_all", lambda rows, loss: (20, 3.5))
    monkeypatch.setattr(keeping, "share_statistics", lambda *_: None)
    keeper.run.step, keeper.run.batch = 5, 2
    assert keeper.save()
    assert gathered == [1]
    assert (keeper.run.rows, keeper.run.loss) == keeper.stepper.progress == counted  # type: ignore[attr-defined]
    assert (tmp_path / "checkpoints" / "step-00000005" / "guidance.safetensors").is_file() == main


def test_the_log_has_a_line_for_each_epoch(tmp_path: Path) -> None:
    keeper = keeper_for(nn.Linear(1, 1), tmp_path)
    keeper.run.history = [{"epoch": 1}, {"epoch": 2}]
    keeper.log()
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == keeper.run.history
    keeper_for(nn.Linear(1, 1), None).log()
