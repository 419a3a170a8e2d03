"""Several seeds in the same steps: each run is what it would have been alone, up to its random draws."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from calmix.data import read_table
from calmix.dynamics import Dynamics
from calmix.errors import InputError, TrainingError
from calmix.mixing import RECIPES
from calmix.models.encoding import encode
from calmix.training import networks, pipeline, train
from calmix.training.halves import Run
from calmix.training.stepping import Stepper
from calmix.training.together import train_together

NEED_MORE = {"back-translation", "distil"}  # a column of paraphrases, a teacher


def asked(folder: Path, out: Path, seed: int, **options: Any) -> dict[str, Any]:
    return {
        "train": tiny.examples(45),
        "dev": tiny.examples(12, seed=1),
        "test": tiny.examples(12, seed=2),
        "model": folder,
        "out": out / str(seed),
        "seed": seed,
        "head": "random",
        "epochs": 2,
        "batch_size": 8,
        "lr": 1e-3,
    } | options


def together(folder: Path, out: Path, seeds: range, **options: Any) -> list[Run | Exception]:
    return train_together([asked(folder, out, seed, **options) for seed in seeds], on_cpu=True)


def metrics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return found


def test_without_random_draws_each_run_is_the_one_it_would_be_alone(calm: Path, tmp_path: Path) -> None:
    found = together(calm, tmp_path / "beside", range(3))
    assert all(isinstance(run, Run) for run in found)
    for seed in range(3):
        alone, beside = tmp_path / "alone" / str(seed), tmp_path / "beside" / str(seed)
        train(**asked(calm, tmp_path / "alone", seed))
        one, other = (load_file(folder / "model" / "model.safetensors") for folder in (alone, beside))
        assert one.keys() == other.keys()
        for name, weight in one.items():
            # A key's bias adds the same to all scores of a query: its gradient is rounding, which Adam makes steps of.
            if not name.endswith("key.bias"):
                torch.testing.assert_close(other[name], weight, rtol=2e-2, atol=2e-3, msg=name)
        one_map, other_map = (Dynamics.load(folder / "datamap.parquet") for folder in (alone, beside))
        assert other_map.observations.tolist() == one_map.observations.tolist() == [2] * 45
        np.testing.assert_allclose(other_map.aum, one_map.aum, atol=1e-3)
        a, b = metrics(alone), metrics(beside)
        assert [e["loss"] for e in b["epochs"]] == pytest.approx([e["loss"] for e in a["epochs"]], rel=1e-3)
        assert (a["trained_beside"], b["trained_beside"]) == (None, 2)
        assert {p.name for p in beside.iterdir()} == {p.name for p in alone.iterdir()}
        assert (beside / "run.toml").read_text() != ""


def test_side_by_side_each_run_begins_with_the_head_it_would_have_alone(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    bert = checkpoint("bert", classes=4)
    found = together(bert, tmp_path / "beside", range(2), head="fitted")
    assert [type(run) for run in found] == [Run, Run]
    for seed in range(2):
        alone = train(**asked(bert, tmp_path / "alone", seed, head="fitted")).metrics
        beside = metrics(tmp_path / "beside" / str(seed))
        assert [entry["epoch"] for entry in beside["epochs"]] == [0, 1, 2]
        for name in ("epoch", "step", "loss", "dev", "joint"):
            assert beside["epochs"][0][name] == alone["epochs"][0][name]
        assert "head: fitted to 45 rows before fine-tuning" in beside["notes"]
        assert beside["trained_beside"] == 1
        seconds = [entry["seconds"] for entry in beside["epochs"]]
        assert seconds[1:] == sorted(seconds[1:])


def test_side_by_side_a_head_that_nothing_beat_is_at_full_size(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = checkpoint("bert", classes=4)
    alone = train(**asked(bert, tmp_path / "alone", 1, head="fitted", epochs=0)).folder
    worth = iter([1.0, 1.0, 0.0, 0.0])  # of two heads, and of what became of each
    monkeypatch.setattr("calmix.training.loop.score", lambda *_: next(worth))
    together(bert, tmp_path / "beside", range(2), head="fitted", epochs=1)
    assert metrics(tmp_path / "beside" / "1")["best_epoch"] == 0
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (alone, tmp_path / "beside" / "1"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_texts_are_tokenised_once_for_all(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenised: list[int] = []

    def noted(examples: Any, *args: Any, **more: Any) -> Any:
        tokenised.append(len(examples))
        return encode(examples, *args, **more)

    monkeypatch.setattr(networks, "encode", noted)
    together(checkpoint("bert"), tmp_path, range(3))
    assert sorted(tokenised) == [12, 12, 45]


def test_each_student_has_a_teacher_of_its_own(calm: Path, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    teachers = [checkpoint("roberta"), checkpoint("electra")]
    taught = {"recipe": "distil", "options": {"alpha": 0.1}}
    both = [asked(calm, tmp_path / "beside", seed, teacher=teachers[seed], **taught) for seed in range(2)]
    alone = [train(**asked(calm, tmp_path / "alone", seed, teacher=teachers[seed], **taught)) for seed in range(2)]
    beside = train_together(both, on_cpu=True)
    for one, other in zip(alone, beside, strict=True):
        assert isinstance(other, Run)
        assert other.metrics["trained_beside"] == 1
        expected, found = (load_file(run.model / "model.safetensors") for run in (one, other))
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=2e-2, atol=2e-3, msg=name)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in NEED_MORE])
def test_every_recipe_trains_several_seeds_at_once(
    recipe: str, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    guided = recipe in ("aum-saliency", "tdmixup", "informed-mixup")
    found = together(checkpoint("bert"), tmp_path, range(2), recipe=recipe, online=guided)
    assert [type(run) for run in found] == [Run, Run]
    figures = [metrics(tmp_path / str(seed)) for seed in range(2)]
    assert [m["trained_beside"] for m in figures] == [1, 1]
    assert figures[0]["epochs"][-1]["loss"] != figures[1]["epochs"][-1]["loss"]
    assert all(np.isfinite(epoch["loss"]) for m in figures for epoch in m["epochs"])


def test_runs_guided_by_dynamics_of_their_own_seed_share_their_steps(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    bert = checkpoint("bert")
    together(bert, tmp_path / "plain", range(2))
    runs = [
        asked(bert, tmp_path / "guided", seed, recipe="tdmixup", dynamics=tmp_path / "plain" / str(seed))
        for seed in range(2)
    ]
    assert [type(run) for run in train_together(runs, on_cpu=True)] == [Run, Run]
    assert metrics(tmp_path / "guided" / "1")["trained_beside"] == 1


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("mpnet", {}), ("llama", {}), ("bert", {"patience": 1}), ("bert", {"accumulate": 2})],
)
def test_what_cannot_share_its_steps_is_trained_one_after_the_other(
    architecture: str, options: dict[str, Any], checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    found = together(checkpoint(architecture), tmp_path, range(2), **options)
    assert [type(run) for run in found] == [Run, Run]
    assert metrics(tmp_path / "1")["trained_beside"] is None


def test_runs_on_different_samples_do_not_share_their_steps(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    runs = [asked(checkpoint("bert"), tmp_path, seed, train=tiny.examples(30, seed=seed)) for seed in (3, 4)]
    assert [type(run) for run in train_together(runs, on_cpu=True)] == [Run, Run]
    assert metrics(tmp_path / "3")["trained_beside"] is None


def test_a_run_that_cannot_begin_does_not_keep_the_others_from_it(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "thesis.tex").write_text("mine")
    found = together(checkpoint("bert"), tmp_path, range(3))
    assert [type(run) for run in found] == [Run, InputError, Run]
    assert [p.name for p in (tmp_path / "1").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("head", "classes"), [("random", 3), ("fitted", 3), ("fitted", 4)])
def test_a_run_that_goes_bad_is_given_up_and_the_others_go_on(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, classes: int
) -> None:
    load_network = pipeline.load_network

    def poisoned(*args: Any, seed: int, **options: Any) -> Any:
        loaded = load_network(*args, seed=seed, **options)
        if seed == 1:
            part = loaded.network.classifier if classes == 3 else loaded.network.bert.pooler.dense
            part.bias.data[0] = torch.nan  # type: ignore[union-attr, operator]
        return loaded

    monkeypatch.setattr(pipeline, "load_network", poisoned)
    monkeypatch.setattr("calmix.training.lowering.Lowered.agrees", lambda *_: True)
    found = together(checkpoint("bert", classes=classes), tmp_path, range(3), head=head)
    assert [type(run) for run in found] == [Run, TrainingError, Run]
    assert "finite" in str(found[1])
    assert not (tmp_path / "1" / "metrics.json").exists()
    assert read_table(tmp_path / "2" / "predictions-test.parquet").num_rows == 12
    assert metrics(tmp_path / "2")["trained_beside"] == 2


def test_where_all_do_not_fit_into_memory_each_is_trained_alone(
    calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = Stepper.step, 0

    def full(self: Stepper, *rest: Any) -> None:
        nonlocal calls
        calls += 1
        if self.runs > 1 and calls > 2:
            raise torch.OutOfMemoryError("no memory left")
        step(self, *rest)

    monkeypatch.setattr(Stepper, "step", full)
    assert [type(run) for run in together(calm, tmp_path / "beside", range(2))] == [Run, Run]
    assert calls > 2
    train(**asked(calm, tmp_path / "alone", 1))
    one, other = (load_file(tmp_path / name / "1" / "model" / "model.safetensors") for name in ("alone", "beside"))
    assert all(torch.equal(one[name], other[name]) for name in one)
