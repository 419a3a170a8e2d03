"""Runs that are guided: by one made before, or by themselves as they go."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from runs import GUIDED, Killed, assert_same_weights, dying_at, weights
from torch import Tensor

from calmix.data import Examples
from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.recipes import Recipe, Step, clean
from calmix.training import Progress
from calmix.training.optimising import learning_rate

THREE_EPOCHS: dict[str, Any] = {"epochs": 3, "select": "none"}

# In two runs


@pytest.mark.parametrize("recipe", GUIDED)
def test_without_dynamics_a_plain_run_is_made_first_and_guides_like_one_that_is_given(quick: Any, recipe: str) -> None:
    two = quick("two", recipe=recipe)
    plain = quick("plain")
    assert_same_weights(two.folder / "dynamics", plain.folder)
    given = quick("given", recipe=recipe, dynamics=plain.folder)
    assert_same_weights(two.folder, given.folder)
    assert not (given.folder / "dynamics").exists()
    by_file = quick("file", recipe=recipe, dynamics=plain.folder / "datamap.parquet")
    assert_same_weights(by_file.folder, given.folder)
    assert any(not torch.equal(a, weights(two.folder)[n]) for n, a in weights(plain.folder).items())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("of_run", "step"),
    [(1, 2), (1, 4), (1, 9), (2, 1), (2, 3), (2, 5)],
)
def test_a_two_run_training_that_was_killed_ends_as_if_it_had_not_been(
    quick: Any, outcome: Any, tmp_path: Path, of_run: int, step: int
) -> None:
    settings = {**THREE_EPOCHS, "recipe": "tdmixup"}
    whole = outcome(quick("whole", **settings).folder)
    first = tmp_path / "run" / "dynamics" / "metrics.json"

    def die(progress: Progress) -> None:
        if progress.step >= step and first.exists() == (of_run == 2):
            raise Killed

    with pytest.raises(Killed):
        quick(**settings, checkpoint_minutes=0, on_progress=die)
    made = first.stat().st_mtime_ns if first.exists() else None
    assert outcome(quick(**settings).folder) == whole
    assert made in (None, first.stat().st_mtime_ns)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "erm", "dynamics": "PLAIN"}, "--dynamics is for recipes guided by training dynamics"),
        ({"recipe": "erm", "online": True}, "--online is for recipes guided by training dynamics"),
        ({"recipe": "tdmixup", "online": True, "dynamics": "PLAIN"}, "give --dynamics or --online, not both"),
        ({"recipe": "tdmixup", "dynamics": "nowhere"}, "nowhere: no such folder"),
        ({"recipe": "tdmixup", "dynamics": "PLAIN", "train": tiny.examples(24, seed=5)}, "have no recorded dynamics"),
    ],
)
def test_dynamics_that_cannot_guide_are_refused_and_nothing_is_left(
    quick: Any, tmp_path: Path, tree: Any, changes: Any, message: str
) -> None:
    plain = quick("plain").folder
    before = tree(tmp_path)
    given = {k: plain if isinstance(v, str) and v == "PLAIN" else v for k, v in changes.items()}
    with pytest.raises(InputError, match=message) as caught:
        quick(**given)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


def test_other_dynamics_make_another_run(quick: Any) -> None:
    first, second = quick("a"), quick("b", seed=4)
    one = quick("one", recipe="tdmixup", dynamics=first.folder)
    with pytest.raises(InputError, match="dynamics is not the same as it was"):
        quick("one", recipe="tdmixup", dynamics=second.folder)
    assert one.folder.is_dir()


# Online


@pytest.mark.parametrize("recipe", GUIDED)
def test_the_first_epoch_online_is_plain_training(quick: Any, recipe: str) -> None:
    one_epoch = {"epochs": 1, "select": "none"}
    online, plain = quick("online", recipe=recipe, online=True, **one_epoch), quick("plain", **one_epoch)
    assert_same_weights(online.folder, plain.folder)


def test_later_epochs_are_guided_by_what_the_run_itself_has_shown(quick: Any) -> None:
    """Each epoch's signals are those that the guide makes of all epochs before."""
    told: list[np.ndarray] = []
    batches: list[dict[str, Any]] = []
    seen: list[tuple[Tensor, Tensor]] = []
    data = tiny.examples(24)

    def guide(dynamics: Dynamics) -> dict[str, np.ndarray]:
        told.append(dynamics.confidence)
        return {"confidence": dynamics.confidence}

    def loss(step: Step) -> Tensor:
        assert step.rows is not None
        seen.append((step.rows.clone(), step.logits.detach().clone()))
        batches.append({name: values.clone() for name, values in step.signals.items()})
        return clean()(step)

    quick(train=data, recipe=Recipe(loss, guide=guide), online=True, **THREE_EPOCHS)
    assert len(told) == 2  # before the second epoch and the third
    assert [set(signals) for signals in batches[:3]] == [set()] * 3
    gold = torch.from_numpy(data.labels)
    sums = torch.zeros(24, dtype=torch.float64)
    for number, (rows, logits) in enumerate(seen):
        epoch = number // 3
        if number % 3 == 0 and epoch:
            np.testing.assert_allclose(told[epoch - 1], (sums / epoch).numpy(), rtol=1e-6)
        if epoch:
            assert batches[number]["confidence"].tolist() == told[epoch - 1].tolist()
        sums[rows] += logits.double().softmax(1).gather(1, gold[rows, None])[:, 0]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("step", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("recipe", ["tdmixup", "aum-saliency"])
def test_an_online_run_that_was_killed_ends_as_if_it_had_not_been(
    quick: Any, outcome: Any, recipe: str, step: int
) -> None:
    settings = {**THREE_EPOCHS, "recipe": recipe, "online": True}
    with pytest.raises(Killed):
        quick(**settings, checkpoint_minutes=0, on_progress=dying_at(step))
    assert outcome(quick(**settings).folder) == outcome(quick("whole", **settings).folder)


@pytest.mark.usefixtures("often")
def test_an_online_run_killed_after_a_saved_epoch_goes_on_from_there(quick: Any, outcome: Any) -> None:
    settings = {**THREE_EPOCHS, "recipe": "tdmixup", "online": True}
    whole = outcome(quick("whole", **settings).folder)
    with pytest.raises(Killed):
        quick(**settings, checkpoint_epochs=1, on_progress=dying_at(4))
    seen: list[int] = []
    run = quick(**settings, on_progress=lambda progress: seen.append(progress.step))
    assert seen[0] == 4
    assert outcome(run.folder) == whole


def test_an_epoch_that_is_shorter_takes_the_same_share_of_the_learning_rate(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def listen(position: float, **settings: Any) -> float:
        asked.append(position)
        return learning_rate(position, **settings)

    monkeypatch.setattr("calmix.training.loop.learning_rate", listen)
    data = tiny.examples(48)
    run = quick(train=data, recipe="tdmixup", online=True, epochs=3, batch_size=4, select="none")
    steps = np.diff([0, *(entry["step"] for entry in run.metrics["epochs"])])
    assert steps.tolist() == [12, 8, 8]  # easy and ambiguous are two thirds
    positions = np.split(np.array(asked), np.cumsum(steps)[:-1])
    for epoch, share in enumerate(positions):
        np.testing.assert_allclose(share, 12 * epoch + 12 * np.arange(len(share)) / len(share))


@pytest.mark.usefixtures("often")
def test_progress_counts_the_steps_that_are_left_as_epochs_change(quick: Any) -> None:
    told: list[Progress] = []
    settings: dict[str, Any] = {"train": tiny.examples(48), "epochs": 3, "batch_size": 4, "on_progress": told.append}
    quick(recipe="tdmixup", online=True, **settings)
    assert [p.steps for p in told] == [36] * 13 + [28] * 18
    assert told[-1].step == told[-1].steps


@pytest.mark.parametrize(("options", "steps"), [({}, 12), ({"online": True}, 6), ({"dynamics": "PLAIN"}, 6)])
def test_a_dry_run_counts_the_run_that_is_made_first(
    quick: Any, tmp_path: Path, tree: Any, options: dict[str, Any], steps: int
) -> None:
    if "dynamics" in options:
        options = {"dynamics": quick("plain").folder}
    before = tree(tmp_path)
    assert quick(recipe="tdmixup", dry_run=True, **options).metrics["steps"] == steps
    assert tree(tmp_path) == before


# Partners over the whole set

SET: dict[str, Any] = {"recipe": "aum-saliency", "options": {"search": "set"}}


def test_the_whole_set_is_searched_from_the_second_epoch_on_and_it_is_said_how_far(quick: Any) -> None:
    plain = quick("plain", epochs=1)
    told: list[str] = []
    run = quick(dynamics=plain.folder, on_note=told.append, **SET, **THREE_EPOCHS)
    first, *later = [entry.get("partners") for entry in run.metrics["epochs"]]
    assert first is None
    for found in later:
        assert found["samples"] == 24
        assert 2 <= found["similar"] <= 24
        assert 2 <= found["dissimilar"] <= 24
    note = f"24 samples had {later[-1]['similar']} different similar ones and {later[-1]['dissimilar']} different"
    assert any(note in line for line in told)
    assert any(note in line for line in run.metrics["notes"])
    batch = quick("batch", recipe="aum-saliency", dynamics=plain.folder, **THREE_EPOCHS)
    assert "partners" not in batch.metrics["epochs"][-1]
    assert any(not torch.equal(a, weights(batch.folder)[n]) for n, a in weights(run.folder).items())


def test_one_epoch_alone_is_searched_in_batches_and_that_is_said(quick: Any) -> None:
    plain = quick("plain", epochs=1)
    run = quick(dynamics=plain.folder, epochs=1, **SET)
    assert_same_weights(run.folder, quick("batch", recipe="aum-saliency", dynamics=plain.folder, epochs=1).folder)
    assert any("from the second epoch on" in line for line in run.metrics["notes"])


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("step", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("online", [True, False])
def test_a_search_over_the_whole_set_that_was_killed_ends_as_if_it_had_not_been(
    quick: Any, outcome: Any, online: bool, step: int
) -> None:
    source = {"online": True} if online else {"dynamics": quick("plain", epochs=1).folder}
    settings = {**THREE_EPOCHS, **SET, **source}
    whole = outcome(quick("whole", **settings).folder)
    with pytest.raises(Killed):
        quick(**settings, checkpoint_minutes=0, on_progress=dying_at(step))
    assert outcome(quick(**settings).folder) == whole


@pytest.mark.parametrize("option", ["aum=false", "saliency=false", "candidates=0", "similarity=head"])
def test_the_ablations_are_searched_too(quick: Any, option: str) -> None:
    name, value = option.split("=")
    options = {"search": "set", name: value}
    run = quick(recipe="aum-saliency", options=options, online=name != "aum", **THREE_EPOCHS)
    assert run.metrics["epochs"][-1]["partners"]["samples"] == 24
    assert np.isfinite(run.metrics["epochs"][-1]["loss"])


@pytest.mark.parametrize("counts", [(2,), (3,), (2, 3, 4)])
def test_choices_find_partners_among_those_with_as_many(quick: Any, checkpoint: Any, counts: Any) -> None:
    data, dev = (tiny.examples(n, kind="choices", seed=s, counts=counts) for n, s in ((24, 0), (12, 1)))
    run = quick(train=data, dev=dev, model=checkpoint("bert", choices=True), online=True, **SET, **THREE_EPOCHS)
    assert run.metrics["epochs"][-1]["partners"]["samples"] > 12
    assert np.isfinite(run.metrics["epochs"][-1]["loss"])


def test_two_classes_find_partners_by_the_gradient_of_the_head(quick: Any) -> None:
    data, dev = (
        Examples.from_texts(tiny.texts(n, seed=s)[0], ["food", "animal"] * (n // 2)) for n, s in ((24, 0), (12, 1))
    )
    run = quick(train=data, dev=dev, online=True, **SET, **THREE_EPOCHS)
    assert run.metrics["epochs"][-1]["partners"]["samples"] == 24
