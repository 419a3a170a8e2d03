"""Dynamics in the loop: what is recorded, and how it guides another run or the very same."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from accelerate import PartialState
from safetensors.torch import load_file
from torch import Tensor

from calmix.data import Examples
from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.recipes import Recipe, Step, clean
from calmix.training import Progress, survey, train
from calmix.training.guiding import Guidance
from calmix.training.optimising import learning_rate

MEASURES = ("aum", "confidence", "variability", "correctness", "forgetting", "loss", "first_loss", "rival_confidence")
THREE_EPOCHS: dict[str, Any] = {"epochs": 3, "select": "none"}
GUIDED = ("tdmixup", "informed-mixup", "aum-saliency")


class Killed(Exception):
    pass


def dying_at(step: int) -> Callable[[Progress], None]:
    def die(progress: Progress) -> None:
        if progress.step >= step:
            raise Killed

    return die


def recorded(folder: Path) -> Dynamics:
    return Dynamics.load(folder / "datamap.parquet")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert all(torch.equal(a[name], b[name]) for name in a)


def assert_same_dynamics(one: Dynamics, other: Dynamics, **near: float) -> None:
    assert one.ids == other.ids
    assert one.epochs == other.epochs
    assert one.observations.tolist() == other.observations.tolist()
    for name in MEASURES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **near)


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


@pytest.mark.parametrize("recipe", GUIDED)
def test_guided_recipes_record_as_well(quick: Any, recipe: str) -> None:
    found = recorded(quick(recipe=recipe, online=True).folder)
    assert (found.observations >= 1).all()
    assert found.epochs == 2


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
        ({"recipe": "tdmixup", "dynamics": "nowhere"}, "nowhere: holds no recorded dynamics"),
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
    with pytest.raises(InputError, match="dynamics was"):
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
    assert len(told) == 3
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


# Corners


def test_a_region_smaller_than_half_a_batch_is_cycled(quick: Any) -> None:
    run = quick(recipe="tdmixup", options={"fraction": "0.1"}, online=True, batch_size=24, **THREE_EPOCHS)
    assert np.isfinite([entry["loss"] for entry in run.metrics["epochs"]]).all()


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
    return Guidance(recipe, torch.tensor(labels), Lone(), **options)  # type: ignore[arg-type]


def dynamics_of(confidences: list[list[float]]) -> Dynamics:
    p = np.array(confidences)
    return Dynamics.from_logits(np.log(np.stack([p, 1 - p], 2)), np.zeros(p.shape[1], dtype=np.int64))


def test_ties_and_samples_never_seen_are_defined() -> None:
    from calmix.mixing import choose

    seen = dynamics_of([[0.5, 0.5, 0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]])
    known = guidance_of(choose("tdmixup"), [0] * 6, dynamics=seen)
    assert known.signals["side"].tolist() == [1, 1, 0, 0, -1, -1]
    logits = np.full((2, 6, 2), np.nan)
    logits[:, :3] = np.log([[[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]])
    partly = Dynamics.from_logits(logits, np.zeros(6, dtype=np.int64))
    assert guidance_of(choose("tdmixup"), [0] * 6, dynamics=partly).signals["side"].tolist() == [0, 1, -1, -1, -1, -1]


def test_what_a_filter_dropped_is_on_no_side() -> None:
    from calmix.mixing import choose

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
    tensor, before = one.signals["confidence"], one.signals["confidence"].tolist()
    one.recorder.update(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    one.end_epoch()
    assert one.signals["confidence"] is tensor
    assert tensor.tolist() != before
    other = guidance_of(recipe, [0, 0], online=True)
    other.load(one.tensors())
    assert other.signals["confidence"].tolist() == tensor.tolist()
    assert_same_dynamics(other.dynamics(), one.dynamics())


# Several processes


SETTINGS: dict[str, Any] = {"epochs": 2, "lr": 1e-2, "select": "none", "seed": 3, "batch_size": 8}
RUNS: dict[str, dict[str, Any]] = {
    "erm": {},
    "online": {"recipe": "tdmixup", "online": True},
    "two": {"recipe": "aum-saliency"},
}


def run_all(model: Path, out: Path) -> None:
    """Map, and train each of `RUNS` on, 27 rows, whose last batch has 3: what each process is started for."""
    settings: dict[str, Any] = {"epochs": 2, "lr": 1e-2, "batch_size": 8}
    survey(tiny.examples(27), model=str(model), out=out / "map", filtered=True, **settings)
    for name, run in RUNS.items():
        train(tiny.examples(27), dev=tiny.examples(11, seed=1), model=model, out=out / name, **SETTINGS, **run)


@pytest.mark.slow
def test_two_processes_record_what_one_does(calm: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tiny.__file__).parent), "ACCELERATE_USE_CPU": "true"}
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29631"]
    command = [sys.executable, "-m", *launcher, __file__, str(calm), str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run_all(calm, tmp_path / "one")
    one, two = (recorded(tmp_path / name / "erm") for name in ("one", "two"))
    assert two.observations.tolist() == [2] * 27
    assert_same_dynamics(one, two, rtol=1e-4, atol=1e-4)
    for name in ("online", "two"):
        assert recorded(tmp_path / "two" / name).epochs == 2
    assert (tmp_path / "two" / "two" / "dynamics" / "datamap.parquet").is_file()
    maps = [recorded(tmp_path / name / "map") for name in ("one", "two")]
    assert_same_dynamics(*maps, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), Path(sys.argv[2]))
    PartialState().destroy_process_group()
