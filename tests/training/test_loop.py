"""The loop: which epoch is kept, when it stops, and that a run that was killed ends as if it had not been."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import calmix
from calmix.data import read_table
from calmix.errors import CalmixWarning, InputError, TrainingError
from calmix.recipes import Recipe, Step, clean
from calmix.training import Progress
from calmix.training.interrupting import Interrupted

THREE_EPOCHS: dict[str, Any] = {"epochs": 3, "recipe": "input-mixup"}


class Killed(Exception):
    pass


def dying_at(step: int, how: type[BaseException] = Killed) -> Callable[[Progress], None]:
    def die(progress: Progress) -> None:
        if progress.step >= step:
            raise how

    return die


@pytest.fixture
def whole(quick: Any, outcome: Any) -> dict[str, Any]:
    """What a run comes to that nothing stopped."""
    found: dict[str, Any] = outcome(quick("whole", **THREE_EPOCHS).folder)
    return found


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("step", [1, 2, 3, 4, 7, 9])
def test_a_run_killed_in_the_middle_of_an_epoch_ends_as_if_it_had_not_been(
    quick: Any, outcome: Any, whole: Any, step: int
) -> None:
    often_saved = {**THREE_EPOCHS, "checkpoint_minutes": 0}
    with pytest.raises(Killed):
        quick(**often_saved, on_progress=dying_at(step))
    assert outcome(quick(**often_saved).folder) == whole


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("step", [4, 7])
def test_a_run_killed_after_a_saved_epoch_goes_on_from_there(quick: Any, outcome: Any, whole: Any, step: int) -> None:
    with pytest.raises(Killed):
        quick(**THREE_EPOCHS, checkpoint_epochs=1, on_progress=dying_at(step))
    seen: list[int] = []
    run = quick(**THREE_EPOCHS, checkpoint_epochs=1, on_progress=lambda progress: seen.append(progress.step))
    assert seen[0] == step
    assert outcome(run.folder) == whole


def test_a_checkpoint_that_is_due_is_saved_at_an_epochs_end_at_the_latest(quick: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        quick(**THREE_EPOCHS, checkpoint_minutes=0, on_progress=dying_at(6))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]


@pytest.mark.usefixtures("often")
def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(quick: Any, outcome: Any, whole: Any) -> None:
    for step in (2, 4, 5, 8):
        with pytest.raises(Killed):
            quick(**THREE_EPOCHS, checkpoint_minutes=0, on_progress=dying_at(step))
    assert outcome(quick(**THREE_EPOCHS).folder) == whole


def test_a_run_killed_between_its_model_and_its_figures_is_finished_by_the_next(
    quick: Any, outcome: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("calmix.training.finishing.write_json", full)
        with pytest.raises(OSError, match="No space left"):
            quick(**THREE_EPOCHS, checkpoint_epochs=1)
    assert outcome(quick(**THREE_EPOCHS).folder) == whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("where", ["a step", "a checkpoint", "the finish"])
def test_kill_9_loses_nothing(
    quick: Any, outcome: Any, whole: Any, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:  # nothing of pytest may run here: whatever happens, the process ends
        try:
            if where == "a checkpoint":
                saved: list[int] = []
                rename = os.rename

                def dying(old: Any, new: Any) -> None:
                    saved.append(1)
                    if len(saved) == 3:
                        die()
                    rename(old, new)

                monkeypatch.setattr("calmix.training.state.os.rename", dying)
            if where == "the finish":
                monkeypatch.setattr("calmix.training.finishing.write_json", die)
            at = (lambda progress: die() if progress.step == 5 else None) if where == "a step" else None
            quick(**THREE_EPOCHS, checkpoint_minutes=0, on_progress=at)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert any((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert outcome(quick(**THREE_EPOCHS).folder) == whole


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "state"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    quick: Any, outcome: Any, whole: Any, damage: str, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        quick(**THREE_EPOCHS, checkpoint_minutes=0, on_progress=dying_at(6))
    before, last = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert (before.name, last.name) == ("step-00000004", "step-00000005")
    file = last / ("state.json" if damage == "state" else "weights.safetensors")
    content = file.read_bytes()
    if damage in ("truncate", "state"):
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        file.unlink()
    seen: list[int] = []
    run = quick(**THREE_EPOCHS, on_progress=lambda progress: seen.append(progress.step))
    assert seen[0] == 5
    assert outcome(run.folder) == whole


@pytest.mark.usefixtures("often")
def test_ctrl_c_saves_first_and_says_how_to_go_on(quick: Any, outcome: Any, whole: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped at step 5 of 9, saved; the same command goes on from there"):
        quick(**THREE_EPOCHS, on_progress=dying_at(5, KeyboardInterrupt))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000005"]
    assert outcome(quick(**THREE_EPOCHS).folder) == whole


pressing_at: list[int] = []
calls: list[int] = []


def pressed(step: Step) -> torch.Tensor:
    """Cross-entropy, with a Ctrl-C in the middle of some steps."""
    calls.append(1)
    if len(calls) in pressing_at:
        signal.raise_signal(signal.SIGINT)
    return clean()(step)


def test_ctrl_c_in_the_middle_of_a_step_waits_for_its_end(quick: Any, outcome: Any) -> None:
    recipe = Recipe(pressed)
    calls.clear()
    pressing_at[:] = []
    whole = outcome(quick("whole", recipe=recipe).folder)
    calls.clear()
    pressing_at[:] = [4]
    with pytest.raises(Interrupted, match="stopped at step 4 of 6, saved"):
        quick(recipe=recipe)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert outcome(quick(recipe=recipe).folder) == whole


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({"select": "none"}, "6 of 6"), ({"select": "nll-ts", "patience": 1, "epochs": 4}, "6 of 12")],
)
def test_ctrl_c_while_the_last_epoch_is_measured_is_not_lost(
    quick: Any, outcome: Any, changes: dict[str, Any], steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []

    def worse(*_: Any) -> float:
        measured.append(-len(measured) if "patience" in changes else 0.0)
        if len(measured) == pressing:
            signal.raise_signal(signal.SIGINT)
        return measured[-1]

    monkeypatch.setattr("calmix.training.loop.score", worse)
    pressing = 0
    whole = outcome(quick("whole", **changes).folder)
    measured.clear()
    pressing = 2
    with pytest.raises(Interrupted, match=f"stopped at step {steps}, saved; the same command goes on from there"):
        quick(**changes)
    assert outcome(quick(**changes).folder) == whole
    assert len(measured) == 2


def test_ctrl_c_before_the_first_step_leaves_nothing_behind(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calmix.training.stepping.Stepper.step", stop)
    with pytest.raises(Interrupted, match="stopped at step 0 of 6, not saved"):
        quick()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 2e-2}, "lr was 0.01, is 0.02"),
        ({"options": {"alpha": "0.3"}}, "options: alpha was not given, is 0.3"),
        ({"recipe": "erm"}, "recipe was input-mixup, is erm"),
        ({"dev": tiny.examples(12, seed=2)}, "data: dev is not the same"),
        ({"class_weights": "balanced", "train": tiny.examples(25)}, "class_weights was not given"),
        ({"precision": "bf16"}, "begun in fp32"),
    ],
)
def test_other_settings_on_an_unfinished_run_are_refused_by_name(
    quick: Any, tmp_path: Path, tree: Any, changes: Any, named: str
) -> None:
    with pytest.raises(Killed):
        quick(**THREE_EPOCHS, checkpoint_minutes=0, on_progress=dying_at(3))
    before = tree(tmp_path)
    with pytest.raises(InputError, match=named):
        quick(**{**THREE_EPOCHS, **changes})
    assert tree(tmp_path) == before


def test_a_finished_run_is_returned_not_run_again(quick: Any, tmp_path: Path, tree: Any) -> None:
    first, told = quick(), []
    before = tree(tmp_path)
    again = quick(on_note=told.append)
    assert again == first
    assert told == [f"{first.folder}: holds this very run, finished; its figures are in {first.folder}/metrics.json"]
    assert tree(tmp_path) == before


def test_who_listens_to_no_notes_is_warned_that_a_run_was_there_already(quick: Any) -> None:
    first = quick()
    with pytest.warns(CalmixWarning, match="holds this very run, finished") as told:
        assert quick() == first
    assert len(told) == 1


def test_a_finished_run_of_other_settings_is_refused(quick: Any, tmp_path: Path, tree: Any) -> None:
    quick()
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"holds a different run \(seed was 3, is 4\)"):
        quick(seed=4)
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("often")
def test_two_runs_cannot_write_to_one_folder(quick: Any) -> None:
    def second(progress: Progress) -> None:
        with pytest.raises(InputError, match="another calmix command is writing to it right now"):
            quick(on_progress=None)
        raise Killed

    with pytest.raises(Killed):
        quick(on_progress=second)


spoilt_at: list[int] = []


def spoilt(step: Step) -> torch.Tensor:
    """Cross-entropy that is infinite at some calls; its gradient is not."""
    calls.append(1)
    return clean()(step) + (float("inf") if len(calls) in spoilt_at else 0.0)


def poisoned(step: Step) -> torch.Tensor:
    """Cross-entropy that is finite, with a gradient that is not, at some calls."""
    calls.append(1)
    losses = clean()(step)
    return losses + (step.logits.sum() * 0).abs().sqrt() if len(calls) in spoilt_at else losses


@pytest.mark.parametrize("loss", [spoilt, poisoned])
@pytest.mark.usefixtures("often")
def test_a_loss_that_is_not_finite_never_reaches_the_weights(quick: Any, loss: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    calls.clear()
    spoilt_at[:] = [5]
    with pytest.raises(TrainingError, match="stopped being finite at step 5; the weights were not touched") as caught:
        quick(recipe=Recipe(loss), checkpoint_minutes=0)
    assert "\n" not in str(caught.value)
    last = max((tmp_path / "run" / "checkpoints").iterdir())
    assert last.name == "step-00000004"
    assert all(bool(t.isfinite().all()) for t in load_file(last / "weights.safetensors").values())
    spoilt_at[:] = []
    assert quick(recipe=Recipe(loss)).metrics["epochs"][-1]["step"] == 6


def test_a_loss_that_is_not_finite_is_told_at_the_epochs_end_at_the_latest(quick: Any, tmp_path: Path) -> None:
    calls.clear()
    spoilt_at[:] = [1]
    with pytest.raises(TrainingError, match="at step 1;"):
        quick(recipe=Recipe(spoilt))
    assert list(tmp_path.iterdir()) == []


def figures_by_epoch(monkeypatch: pytest.MonkeyPatch, epochs: list[dict[str, float]]) -> None:
    """Have the dev set come out as told, epoch by epoch."""
    told = iter(epochs)
    monkeypatch.setattr("calmix.training.loop.dev_figures", lambda *_: {"temperature": 1.0, **next(told)})


EPOCHS = [
    {"accuracy": 0.5, "mcc": 0.1, "nll": 0.6, "nll-ts": 0.5},
    {"accuracy": 0.9, "mcc": 0.2, "nll": 0.5, "nll-ts": 0.6},
    {"accuracy": 0.9, "mcc": 0.3, "nll": 0.9, "nll-ts": 0.7},
    {"accuracy": 0.4, "mcc": 0.1, "nll": 1.0, "nll-ts": 0.9},
]


@pytest.mark.parametrize(("select", "kept"), [("nll-ts", 1), ("nll", 2), ("accuracy", 3), ("mcc", 3), ("none", 4)])
def test_the_epoch_that_is_best_by_the_chosen_figure_is_kept(
    quick: Any, select: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    with monkeypatch.context() as patch:
        figures_by_epoch(patch, EPOCHS)
        run = quick(select=select, epochs=4, schedule="constant", warmup=0)
    assert run.metrics["best_epoch"] == kept
    assert len(run.metrics["epochs"]) == 4
    # A run of so many epochs at a constant rate has the same weights at its end.
    alone = quick("alone", select="none", epochs=kept, schedule="constant", warmup=0)
    a, b = (load_file(r.model / "model.safetensors") for r in (run, alone))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("patience", "epochs"), [(0, 4), (1, 2), (2, 3), (3, 4)])
def test_patience_ends_a_run_that_gets_no_better(
    quick: Any, patience: int, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures_by_epoch(monkeypatch, EPOCHS)
    assert len(quick(select="nll-ts", patience=patience, epochs=4).metrics["epochs"]) == epochs


def test_an_epoch_without_a_usable_figure_is_the_worst(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    figures_by_epoch(monkeypatch, [{"nll-ts": float("nan")}, {"nll-ts": 0.5}, {"nll-ts": float("inf")}])
    run = quick(epochs=3)
    assert run.metrics["best_epoch"] == 2
    assert [e["dev"]["nll-ts"] for e in run.metrics["epochs"]] == [None, 0.5, None]


def test_a_model_whose_predictions_are_not_finite_is_told_as_diverged(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = np.full((12, 3), np.nan, dtype=np.float32)
    monkeypatch.setattr("calmix.training.loop.predict_logits", lambda *_, **__: bad)
    with pytest.raises(TrainingError, match="predictions stopped being finite in epoch 1: training diverged"):
        quick()


@pytest.mark.usefixtures("often")
def test_progress_is_told_with_a_running_mean_of_the_loss(quick: Any) -> None:
    told: list[Progress] = []
    run = quick(on_progress=told.append)
    assert [p.step for p in told] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert {p.steps for p in told} == {6}
    assert [p.epoch for p in told] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert told[3].loss == run.metrics["epochs"][0]["loss"]
    assert all(p.rate > 0 for p in told)


def test_what_is_kept_about_dev_data_is_what_the_best_epochs_model_says(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures_by_epoch(monkeypatch, EPOCHS)
    run = quick(recipe="erm")
    assert run.metrics["best_epoch"] == 1
    written = np.array(read_table(run.folder / "predictions-dev.parquet")["logits"].to_pylist())
    classifier = calmix.load(run.model)
    scaled = classifier.logits(tiny.examples(12, seed=1))
    np.testing.assert_allclose(written, scaled * run.metrics["temperature"], rtol=1e-4, atol=1e-5)
