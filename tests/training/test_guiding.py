"""Dynamics in the loop: what is recorded, and what a recipe is told of them."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from runs import GUIDED, assert_same_dynamics, assert_same_weights, recorded
from torch import Tensor

from calmix.data import Examples
from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.recipes import Recipe, Step, clean
from calmix.training.batches import TrainingSet
from calmix.training.guiding import Guidance

THREE_EPOCHS: dict[str, Any] = {"epochs": 3, "select": "none"}


def stashing(seen: list[tuple[Tensor, Tensor]]) -> Recipe:
    """Plain training that also keeps what it saw."""

    def loss(step: Step) -> Tensor:
        assert step.rows is not None
        seen.append((step.rows.clone(), step.logits.detach().clone()))
        return clean()(step)

    return Recipe(loss)


# What is recorded


@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_is_recorded_is_what_the_steps_saw_each_sample_once_an_epoch(quick: Any, accumulate: int) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    data = tiny.examples(27)  # the last batch has 3 rows
    run = quick(train=data, recipe=stashing(seen), accumulate=accumulate, **THREE_EPOCHS)
    rows = torch.cat([r for r, _ in seen]).view(3, 27)
    assert rows.sort(1).values.tolist() == [list(range(27))] * 3
    logits = torch.cat([z for _, z in seen]).view(3, 27, 3)
    logits = torch.stack([z[r.argsort()] for r, z in zip(rows, logits, strict=True)])
    found = recorded(run.folder)
    gold = torch.from_numpy(data.labels)
    p = logits.double().softmax(2).gather(2, gold.expand(3, -1)[..., None])[..., 0].numpy()
    others = logits.double().clone()
    others.scatter_(2, gold.expand(3, -1)[..., None], -torch.inf)
    margin = logits.double().gather(2, gold.expand(3, -1)[..., None])[..., 0] - others.amax(2)
    right = logits.argmax(2).eq(gold).numpy()
    assert found.ids == tuple(data.ids)
    assert found.epochs == 3
    assert found.observations.tolist() == [3] * 27
    np.testing.assert_allclose(found.confidence, p.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.variability, p.std(0), atol=1e-7)
    np.testing.assert_allclose(found.aum, margin.mean(0).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.correctness, right.mean(0))
    assert found.forgetting.tolist() == (right[:-1] & ~right[1:]).sum(0).tolist()
    assert found.recorded_on == "training pass"


def test_recording_changes_no_weight(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = quick("watched")
    monkeypatch.setattr(Guidance, "observe", lambda *_: None)
    assert_same_weights(watched.folder, quick("alone").folder)
    assert not (watched.folder.parent / "alone" / "datamap.parquet").exists()


@pytest.mark.parametrize(("recipe", "records"), [("input-mixup", False), ("cls-mixup", True), ("erl", True)])
def test_only_recipes_that_see_clean_texts_leave_a_map(quick: Any, recipe: str, records: bool) -> None:
    folder = quick(recipe=recipe).folder
    assert (folder / "datamap.parquet").is_file() == (folder / "label_issues.csv").is_file() == records
    if records:
        assert recorded(folder).observations.tolist() == [2] * 24


@pytest.mark.parametrize("recipe", ["erm", "input-mixup"])
def test_an_evaluation_pass_records_every_epoch_as_the_model_then_stands(quick: Any, recipe: str) -> None:
    """With training data for dev data, the dev figures of each epoch are those of the same pass."""
    data = tiny.examples(27)
    run = quick(train=data, dev=data, recipe=recipe, record="evaluation", **THREE_EPOCHS)
    found = recorded(run.folder)
    assert found.recorded_on == run.metrics["recorded_on"] == "evaluation pass"
    assert found.observations.tolist() == [3] * 27
    dev = [entry["dev"] for entry in run.metrics["epochs"]]
    assert found.loss.mean() == pytest.approx(np.mean([d["nll"] for d in dev]), rel=1e-5)
    assert found.correctness.mean() == pytest.approx(np.mean([d["accuracy"] for d in dev]))
    assert any("a third more time" in note for note in run.metrics["notes"])


def test_which_pass_is_recorded_changes_no_weight_but_another_run_it_is(quick: Any) -> None:
    training, evaluation = quick("training"), quick("evaluation", record="evaluation")
    assert_same_weights(training.folder, evaluation.folder)
    assert training.metrics["recorded_on"] == "training pass"
    assert quick("none", recipe="input-mixup").metrics["recorded_on"] is None
    with pytest.raises(InputError, match="record was"):
        quick("training", record="evaluation")
    with pytest.raises(InputError, match="--record must be one of training, evaluation"):
        quick("other", record="neither")


def test_choices_are_recorded_in_an_evaluation_pass_too(quick: Any, checkpoint: Any) -> None:
    data, dev = (tiny.examples(n, kind="choices", seed=s) for n, s in ((24, 0), (12, 1)))
    run = quick(train=data, dev=dev, model=checkpoint("bert", choices=True), record="evaluation")
    found = recorded(run.folder)
    assert found.observations.tolist() == [2] * 24
    assert (found.last_prediction < data.choice_counts).all()


@pytest.mark.parametrize("recipe", GUIDED)
def test_guided_recipes_record_as_well(quick: Any, recipe: str) -> None:
    found = recorded(quick(recipe=recipe, online=True).folder)
    assert (found.observations >= 1).all()
    assert found.epochs == 2


# Corners


def test_a_region_smaller_than_half_a_batch_is_cycled(quick: Any) -> None:
    run = quick(recipe="tdmixup", options={"fraction": "0.1"}, online=True, batch_size=24, **THREE_EPOCHS)
    assert np.isfinite([entry["loss"] for entry in run.metrics["epochs"]]).all()


@pytest.mark.parametrize("batch_size", [1, 2, 512])
@pytest.mark.parametrize("options", [{}, {"search": "set"}])
def test_batches_of_one_and_batches_larger_than_the_data(quick: Any, options: dict[str, str], batch_size: int) -> None:
    settings = {"recipe": "aum-saliency", "options": options, "online": True, "batch_size": batch_size}
    run = quick(**settings, **THREE_EPOCHS)
    assert np.isfinite([entry["loss"] for entry in run.metrics["epochs"]]).all()
    assert recorded(run.folder).observations.tolist() == [3] * 24


@pytest.mark.parametrize("recipe", GUIDED)
@pytest.mark.parametrize("online", [True, False])
def test_two_classes_and_a_class_that_a_region_lacks(quick: Any, recipe: str, online: bool) -> None:
    labels = ["food"] * 22 + ["animal"] * 2
    data = Examples.from_texts(tiny.texts(24)[0], labels)
    dev = Examples.from_texts(tiny.texts(12, seed=1)[0], ["food", "animal"] * 6)
    run = quick(train=data, dev=dev, recipe=recipe, online=online)
    assert np.isfinite([entry["loss"] for entry in run.metrics["epochs"]]).all()


@pytest.mark.parametrize("counts", [(2,), (2, 3, 4)])
@pytest.mark.parametrize("recipe", GUIDED)
def test_choices_few_or_uneven(quick: Any, checkpoint: Any, recipe: str, counts: Any) -> None:
    data, dev = (tiny.examples(n, kind="choices", seed=s, counts=counts) for n, s in ((24, 0), (12, 1)))
    run = quick(train=data, dev=dev, model=checkpoint("bert", choices=True), recipe=recipe, online=True)
    assert np.isfinite([entry["loss"] for entry in run.metrics["epochs"]]).all()
    found = recorded(run.folder)
    assert (found.last_prediction < data.choice_counts).all()


def test_after_one_epoch_there_is_no_variability_and_regions_go_by_confidence(quick: Any) -> None:
    plain = quick("plain", epochs=1)
    found = recorded(plain.folder)
    assert not found.has_spread
    assert found.variability.tolist() == [0.0] * 24
    run = quick(recipe="tdmixup", dynamics=plain.folder)
    assert np.isfinite(run.metrics["epochs"][-1]["loss"])


class Lone:
    """As much of an accelerator as guidance asks for."""

    num_processes = 1


def guidance_of(recipe: Recipe, labels: list[int], **options: Any) -> Guidance:
    data = TrainingSet(packed=None, labels=torch.tensor(labels), classes=2)  # type: ignore[arg-type]
    return Guidance(recipe, torch.nn.Module(), data, Lone(), **options)  # type: ignore[arg-type]


def dynamics_of(confidences: list[list[float]]) -> Dynamics:
    p = np.array(confidences)
    return Dynamics.from_logits(np.log(np.stack([p, 1 - p], 2)), np.zeros(p.shape[1], dtype=np.int64))


def test_ties_and_samples_never_seen_are_defined() -> None:
    seen = dynamics_of([[0.5, 0.5, 0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]])
    known = guidance_of(choose("tdmixup"), [0] * 6, dynamics=seen)
    assert known.signals["side"].tolist() == [1, 1, 0, 0, -1, -1]
    logits = np.full((2, 6, 2), np.nan)
    logits[:, :3] = np.log([[[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]])
    partly = Dynamics.from_logits(logits, np.zeros(6, dtype=np.int64))
    assert guidance_of(choose("tdmixup"), [0] * 6, dynamics=partly).signals["side"].tolist() == [0, 1, -1, -1, -1, -1]


def test_what_a_filter_dropped_is_on_no_side() -> None:
    seen = dynamics_of([[0.9, 0.8, 0.3, 0.4, 0.1, 0.2], [0.9, 0.8, 0.9, 0.9, 0.1, 0.2]])
    dropped = np.array([True, False, False, True, False, False])
    known = guidance_of(choose("tdmixup"), [0] * 6, dynamics=seen, dropped=dropped)
    assert known.signals["side"].tolist() == [-1, 0, 1, -1, -1, -1]
    assert known.columns["side"].tolist() == [-1, 0, 1, -1, -1, -1]


def test_signals_stay_in_their_tensors_and_survive_saving() -> None:
    def guide(dynamics: Dynamics) -> dict[str, np.ndarray]:
        return {"confidence": dynamics.confidence}

    recipe = Recipe(clean(), guide=guide)
    one = guidance_of(recipe, [0, 0], online=True)
    one.recorder.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    one.end_epoch()
    one.begin_epoch(1)
    tensor, before = one.signals["confidence"], one.signals["confidence"].tolist()
    one.recorder.update(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    one.end_epoch()
    one.begin_epoch(2)
    assert one.signals["confidence"] is tensor
    assert tensor.tolist() != before
    other = guidance_of(recipe, [0, 0], online=True)
    other.load(one.tensors())
    assert other.signals["confidence"].tolist() == other.columns["confidence"].tolist() == tensor.tolist()
    assert_same_dynamics(other.dynamics(), one.dynamics())


def test_what_is_given_from_outside_stays_and_is_not_saved() -> None:
    column = torch.ones(2, 3)
    one = guidance_of(
        Recipe(clean(), guide=lambda seen: {"side": np.zeros(2)}), [0, 0], online=True, given={"t": column}
    )
    assert set(one.signals) == {"t"}
    assert not one.told
    one.recorder.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    one.end_epoch()
    one.begin_epoch(1)
    assert set(one.signals) == {"t", "side"}
    assert one.signals["t"] is column
    assert [name for name in one.tensors() if not name.startswith("recorder.")] == ["column.side"]
