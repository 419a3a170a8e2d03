"""Where a run begins: with a head that is fitted to the network's features, and what becomes of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from runs import Killed, dying_at, recorded, weights
from safetensors.torch import load_file, save_file

import calmix
from calmix.data import Examples
from calmix.errors import InputError, TrainingError
from calmix.models import FACTOR, FittedHead
from calmix.recalibration import Temperature
from calmix.training import Progress, survey
from calmix.training.defaults import is_pretrained
from calmix.training.head_start import Start, begin_head, start_for
from calmix.training.stepping import Stepper

Worth = Callable[[Any], None]


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch) -> Worth:
    """Return `worth([…])`: have epochs be worth so much, one after the other, beginning with 0."""

    def tell(values: Any) -> None:
        told = iter(values)
        monkeypatch.setattr("calmix.training.loop.score", lambda *_: next(told))

    return tell


# ---- where runs begin


def test_heads_are_fitted_where_there_are_trained_weights(checkpoint: Any) -> None:
    bert = str(checkpoint("bert"))
    assert start_for(bert, None, None) == Start("fitted", "mean")
    assert start_for(bert, "random", None) == Start("random", "first")
    assert start_for(bert, "random", "mean") == Start("random", "mean")
    assert start_for(bert, "fitted", "first") == Start("fitted", "first")
    for name in ("resnet18", "sentence-cnn"):
        assert not is_pretrained(name)
        assert start_for(name, None, None) == Start("random", "first")
        with pytest.raises(InputError, match=f"--head fitted: {name} begins with random weights"):
            start_for(name, "fitted", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "trained"}, "--head must be one of fitted, random, not 'trained'"),
        ({"pooling": "max"}, "--pooling must be one of mean, first, not 'max'"),
        ({"head": "random", "epochs": 0}, "--epochs 0 is a fitted head alone, and a random one is not fitted"),
        ({"model": "resnet18", "epochs": 0, "head": None}, "--epochs 0 is a fitted head alone"),
    ],
)
def test_what_cannot_be_meant_is_refused(anew: Any, tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        anew(**changes)
    assert list(tmp_path.iterdir()) == []


def test_a_new_head_reads_the_mean_unless_told_otherwise_and_a_trained_one_what_it_always_did(
    anew: Any, checkpoint: Any, headless: Any
) -> None:
    layers = {
        name: calmix.load(anew(name, epochs=0, **changes).folder).model.config.num_hidden_layers
        for name, changes in {
            "mean": {"model": headless("bert")},
            "first": {"model": headless("bert"), "pooling": "first"},
            "kept": {"model": checkpoint("bert")},
            "drawn anew": {},
            "pairs": {
                "model": headless("bert"),
                "train": tiny.examples(24, kind="pair"),
                "dev": tiny.examples(12, kind="pair", seed=1),
            },
        }.items()
    }
    assert layers == {"mean": 3, "first": 2, "kept": 2, "drawn anew": 2, "pairs": 2}


# ---- epoch 0


def test_the_first_entry_of_the_history_is_the_network_before_fine_tuning(anew: Any) -> None:
    heard: list[str] = []
    run, alone = anew(on_note=heard.append), anew("alone", epochs=0)
    assert [entry["epoch"] for entry in run.metrics["epochs"]] == [0, 1, 2]
    first, *_, last = run.metrics["epochs"]
    assert (first["step"], first["loss"]) == (0, None)
    assert first["seconds"] <= last["seconds"] <= run.metrics["seconds"]
    assert set(first["dev"]) == set(last["dev"])
    assert np.shape(first["joint"]) == np.shape(last["joint"])
    # What it says of dev data is what a run comes to that stops there.
    before = alone.metrics["splits"]["dev"]["before"]
    assert first["dev"]["nll"] == pytest.approx(before["nll"], rel=1e-4)
    assert first["dev"]["accuracy"] == before["accuracy"]
    assert [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()] == run.metrics["epochs"]
    assert "head: fitted to 24 rows before fine-tuning" in run.metrics["notes"]
    assert heard == run.metrics["notes"]


def test_a_run_that_begins_with_a_random_head_has_no_epoch_0(anew: Any) -> None:
    assert [entry["epoch"] for entry in anew(head="random").metrics["epochs"]] == [1, 2]


def test_the_head_begins_small(anew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[tuple[FittedHead, float]] = []
    monkeypatch.setattr(FittedHead, "put_into", lambda self, model, factor: heads.append((self, factor)))
    anew(epochs=1)
    ((head, factor),) = heads
    assert factor == FACTOR == 0.125
    assert head.rows == 24


def test_fine_tuning_that_never_beats_the_head_leaves_it_at_full_size(anew: Any, worth: Worth) -> None:
    alone = anew("alone", epochs=0)
    worth([1.0, 0.5, 0.9])
    run = anew()
    assert run.metrics["best_epoch"] == 0
    assert run.metrics["epochs"][-1]["step"] == 6
    a, b = weights(run.folder), weights(alone.folder)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert run.metrics["temperature"] == alone.metrics["temperature"]
    assert any("no epoch of fine-tuning was better than the head fitted before it" in n for n in run.metrics["notes"])
    # What was learnt about each row in the meantime is kept all the same.
    assert recorded(run.folder).observations.tolist() == [2] * 24


def test_fine_tuning_goes_on_from_the_fitted_head(anew: Any, worth: Worth) -> None:
    alone = anew("alone", epochs=0)
    worth([0.5, 1.0])
    run = anew(epochs=1, lr=1e-9)
    assert run.metrics["best_epoch"] == 1
    began, ended = (weights(done.folder)["classifier.weight"] * done.metrics["temperature"] for done in (alone, run))
    torch.testing.assert_close(ended, FACTOR * began)


@pytest.mark.parametrize(("patience", "epochs"), [(1, 1), (2, 2), (0, 4)])
def test_patience_counts_from_the_fitted_head(anew: Any, worth: Worth, patience: int, epochs: int) -> None:
    worth([1.0, 0.1, 0.2, 0.3, 0.4])
    run = anew(patience=patience, epochs=4)
    assert [entry["epoch"] for entry in run.metrics["epochs"]] == [*range(epochs + 1)]
    assert run.metrics["best_epoch"] == 0


def test_at_equal_worth_the_fine_tuned_network_is_kept(anew: Any) -> None:
    assert anew(select="none").metrics["best_epoch"] == 2


def test_trackers_are_told_of_the_network_before_fine_tuning(anew: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = anew(track="tensorboard")
    (events,) = {p.parent for p in run.folder.rglob("events.out.tfevents.*") if p.parent.name == "calmix"}
    found = EventAccumulator(str(events)).Reload()
    assert [e.step for e in found.Scalars("train/loss")] == [3, 6]
    assert [e.step for e in found.Scalars("dev/nll")] == [0, 3, 6]
    curve = [e.value for e in found.Scalars("dev/nll")]
    np.testing.assert_allclose(curve, [e["dev"]["nll"] for e in run.metrics["epochs"]], rtol=1e-6)


def test_progress_begins_with_the_head_and_goes_on_with_the_epochs(anew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("calmix.training.head_start.time.monotonic", clock)
    anew(on_progress=told.append)
    fitting = [progress for progress in told if progress.epoch == 0]
    assert fitting == told[: len(fitting)]
    assert fitting
    assert all(0 < progress.step <= progress.steps == 24 for progress in fitting)
    assert all(np.isnan(progress.loss) for progress in fitting)
    assert told[-1].epoch == 2


# ---- the head alone


def test_a_head_alone_is_a_whole_run_without_a_map(anew: Any) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    dev, test = tiny.examples(12, seed=1), tiny.examples(20, seed=5)
    run = anew(dev=dev, test=test, epochs=0)
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "log.jsonl",
        "metrics.json",
        "model",
        "predictions-dev.parquet",
        "predictions-test.parquet",
        "run.toml",
    ]
    assert run.metrics["best_epoch"] == 0
    assert [entry["epoch"] for entry in run.metrics["epochs"]] == [0]
    assert len((run.folder / "log.jsonl").read_text().splitlines()) == 1
    said = np.array(pq.read_table(run.folder / "predictions-dev.parquet")["logits"].to_pylist())
    assert run.metrics["temperature"] == pytest.approx(Temperature.fit(said, dev.labels).temperature)
    model = AutoModelForSequenceClassification.from_pretrained(run.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    with torch.no_grad():
        logits = model(**tokenizer(test.column("text"), padding=True, return_tensors="pt")).logits
    table = pq.read_table(run.folder / "predictions-test.parquet")
    ours = np.stack([table[f"p_{name}"].to_numpy() for name in tiny.LABELS], axis=1)
    np.testing.assert_allclose(torch.softmax(logits.double(), -1), ours, atol=1e-5)
    assert run.metrics["splits"]["test"]["after"]["accuracy"] > 0.4


def test_a_head_alone_leaves_the_encoder_as_it_was(anew: Any, checkpoint: Any) -> None:
    found = weights(anew(epochs=0, pooling="first").folder)
    before = load_file(checkpoint("bert", classes=4) / "model.safetensors")
    assert all(torch.equal(found[name], before[name]) for name in before if ".layer." in name or "embeddings" in name)
    assert found["classifier.weight"].shape == (3, tiny.WIDTH)


@pytest.mark.parametrize("recipe", ["tdmixup", "aum-saliency", "input-mixup"])
def test_whatever_the_recipe_a_head_alone_needs_no_run_before_it(anew: Any, recipe: str) -> None:
    run = anew(recipe=recipe, epochs=0)
    assert run.metrics["best_epoch"] == 0
    assert not (run.folder / "dynamics").exists()


def test_a_lean_run_of_a_head_alone_keeps_its_figures(anew: Any) -> None:
    run = anew(epochs=0, lean=True)
    assert not (run.folder / "model").exists()
    assert run.metrics["splits"]["dev"]["after"]["nll"] > 0


def test_a_dry_run_of_a_head_alone_takes_the_time_of_a_look_and_no_steps(anew: Any, tmp_path: Path) -> None:
    alone, whole = anew(dry_run=True, epochs=0).metrics, anew(dry_run=True, epochs=2).metrics
    assert (alone["steps"], whole["steps"]) == (0, 6)
    assert alone["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


# ---- what it is fitted to


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_written_about_dev_data_is_what_the_finished_model_says(
    anew: Any, worth: Worth, precision: str
) -> None:
    worth([1.0, 0.0, 0.0])
    rows = tiny.examples(40, seed=1)
    run = anew(dev=rows, test=rows, precision=precision)
    assert run.metrics["best_epoch"] == 0
    dev, test = (
        pq.read_table(run.folder / f"predictions-{name}.parquet")["logits"].to_pylist() for name in ("dev", "test")
    )
    assert dev == test
    own = calmix.load(run.folder).logits(rows) * run.metrics["temperature"]
    np.testing.assert_allclose(own, dev, rtol=1e-4, atol=1e-5)


def test_every_kind_of_network_begins_with_a_fitted_head(anew: Any, checkpoint: Any, architecture: str) -> None:
    run = anew(model=checkpoint(architecture, classes=4), epochs=1)
    assert [entry["epoch"] for entry in run.metrics["epochs"]] == [0, 1]
    assert any(note.startswith("head: fitted to 24 rows") for note in run.metrics["notes"])


def test_networks_of_images_begin_with_a_fitted_head(anew: Any, image_checkpoint: Any, image_architecture: str) -> None:
    run = anew(
        train=tiny.images(24),
        dev=tiny.images(12, seed=1),
        model=image_checkpoint(image_architecture, classes=4),
        epochs=1,
    )
    assert [entry["epoch"] for entry in run.metrics["epochs"]] == [0, 1]
    assert run.metrics["epochs"][0]["dev"]["accuracy"] > 0.4


def test_choices_begin_with_a_fitted_head_where_none_was_trained_to_choose(anew: Any, checkpoint: Any) -> None:
    sets = {"train": tiny.examples(24, kind="choices"), "dev": tiny.examples(12, kind="choices", seed=1)}
    new, kept = anew("new", **sets, epochs=0), anew("kept", **sets, model=checkpoint("bert", choices=True), epochs=0)
    assert "head: fitted to 24 rows before fine-tuning" in new.metrics["notes"]
    assert "head: it is trained for these labels already, and is kept" in kept.metrics["notes"]


def test_a_kept_head_is_kept_to_the_bit_whatever_the_order_of_its_labels(anew: Any, checkpoint: Any) -> None:
    folder = checkpoint("bert")
    texts, labels = tiny.texts(24)
    data = Examples.from_texts(texts, labels, label_names=tiny.LABELS[::-1])
    run = anew(train=data, dev=data.take(range(12)), model=folder, epochs=0)
    found = weights(run.folder)["classifier.weight"] * run.metrics["temperature"]
    torch.testing.assert_close(found, load_file(folder / "model.safetensors")["classifier.weight"].flip(0))


def test_class_weights_and_votes_count_in_the_head(anew: Any) -> None:
    few = Examples.from_texts(tiny.texts(24)[0], ["animal"] * 20 + ["food"] * 2 + ["weather"] * 2)
    means = []
    for name, changes in (("as they are", {}), ("balanced", {"class_weights": "balanced"})):
        run = anew(name, train=few, epochs=0, **changes)
        probs = pq.read_table(run.folder / "predictions-dev.parquet")["logits"].to_pylist()
        means.append(torch.softmax(torch.tensor(probs), 1).mean(0)[0])
    assert means[0] > means[1] + 0.1


def test_a_student_begins_with_a_head_fitted_to_what_its_teacher_says(anew: Any, checkpoint: Any) -> None:
    """Rows need no label for that; a teacher that is asked in each step only has not said anything by then."""
    texts, _ = tiny.texts(24)
    data = Examples.from_texts(texts, label_names=tiny.LABELS)
    taught = {"recipe": "distil", "options": {"alpha": 0.0}, "teacher": checkpoint("roberta"), "train": data}
    kept, live = anew("kept", **taught), anew("live", **taught, cache_teacher=False)
    assert [entry["epoch"] for entry in kept.metrics["epochs"]] == [0, 1, 2]
    assert "head: fitted to 24 rows before fine-tuning" in kept.metrics["notes"]
    assert [entry["epoch"] for entry in live.metrics["epochs"]] == [1, 2]
    with pytest.raises(InputError, match="--epochs 0 has nothing to fit a head to: give --cache, or rows with labels"):
        anew("nothing", **taught, cache_teacher=False, epochs=0)


def test_a_map_begins_with_a_fitted_head_too(headless: Any, tmp_path: Path) -> None:
    # In bf16, what a network of random numbers says of two texts is the same.
    settings: dict[str, Any] = {"model": str(headless("bert")), "epochs": 1, "batch_size": 8, "lr": 1e-9}
    settings["precision"] = "fp32"
    fitted = survey(tiny.examples(90), out=tmp_path / "fitted", **settings)
    random = survey(tiny.examples(90), out=tmp_path / "random", head="random", **settings)
    # At the last look there is no dropout, whose numbers differ from device to device.
    right, guessed = ((run.dynamics.last_prediction == run.dynamics.labels).mean() for run in (fitted, random))
    assert right > guessed + 0.2


@pytest.mark.parametrize("head", ["kept", "fitted"])
def test_a_network_that_says_nothing_finite_is_told_before_it_is_trained(
    anew: Any, checkpoint: Any, tmp_path: Path, head: str
) -> None:
    folder = shutil.copytree(checkpoint("bert", classes=3 if head == "kept" else 4), tmp_path / "bert")
    held = load_file(folder / "model.safetensors")
    held["bert.encoder.layer.1.output.dense.weight"][0, 0] = torch.nan
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainingError, match="not finite before any training: look at the model's weights") as caught:
        anew(model=folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# ---- stopped, and gone on with


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("step", "best"), [(1, 0), (3, 1), (4, 0), (6, 2)])
def test_a_run_that_was_killed_goes_on_to_the_same_result(
    anew: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch, step: int, best: int
) -> None:
    def score(figures: dict[str, float], *_: Any) -> float:
        return 1.0 if figures["nll"] == nlls[best] else 0.0

    nlls = [entry["dev"]["nll"] for entry in anew("figures").metrics["epochs"]]
    monkeypatch.setattr("calmix.training.loop.score", score)
    run = anew("whole", checkpoint_minutes=0)
    assert run.metrics["best_epoch"] == best
    whole = outcome(run.folder)
    with pytest.raises(Killed):
        anew(checkpoint_minutes=0, on_progress=dying_at(step))
    monkeypatch.setattr("calmix.training.head_start.fit_head_to", lambda *_, **__: pytest.fail("it was fitted again"))
    assert outcome(anew(checkpoint_minutes=0).folder) == whole


def test_a_run_that_was_killed_after_its_head_was_fitted_need_not_fit_it_again(
    anew: Any, outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = outcome(anew("whole").folder)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "step", die)
        with pytest.raises(Killed):
            anew(checkpoint_minutes=0)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000000"]
    monkeypatch.setattr("calmix.training.head_start.fit_head_to", lambda *_, **__: pytest.fail("it was fitted again"))
    assert outcome(anew().folder) == whole


@pytest.mark.parametrize("where", ["fit_head_to", "predict_everywhere"])
def test_a_run_that_was_killed_while_its_head_was_fitted_leaves_nothing(
    anew: Any, checkpoint: Any, outcome: Any, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"model": checkpoint("bert")} if where == "predict_everywhere" else {}

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"calmix.training.head_start.{where}", stop)
        with pytest.raises(KeyboardInterrupt):
            anew(**changes)
    assert list(tmp_path.iterdir()) == []


def test_a_head_alone_that_was_killed_before_its_figures_is_finished_by_the_next(
    anew: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = outcome(anew("whole", epochs=0).folder)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("calmix.training.finishing.write_json", full)
        with pytest.raises(OSError, match="No space left"):
            anew(epochs=0)
    assert outcome(anew(epochs=0).folder) == whole


def test_begin_head_has_nothing_to_fit_to_where_no_row_says_anything(checkpoint: Any, tmp_path: Path) -> None:
    from calmix.training.batches import training_set
    from calmix.training.launching import accelerator_for
    from calmix.training.networks import load_network

    data = Examples.from_texts(tiny.texts(6)[0], label_names=tiny.LABELS)
    loaded = load_network(str(checkpoint("bert", classes=4)), {"train": data}, seed=0, max_length=16)
    found = begin_head(
        loaded.network,
        training_set(data, loaded.packed["train"], None),
        dev=None,
        accelerator=accelerator_for("fp32", (), tmp_path),
        trained=loaded.trained_head,
        set_inner=False,
    )
    assert found is None
