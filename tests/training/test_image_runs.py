"""Runs on images: the same loop, recipes and files as for texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import calmix
from calmix.calibration import Temperature
from calmix.data import read_examples, read_table
from calmix.errors import InputError
from calmix.mixing import RECIPES
from calmix.training import Run, survey, train
from calmix.training.interrupting import Interrupted

Checkpoint = Callable[..., Path]
Quick = Callable[..., Run]


@pytest.fixture
def quick_images(image_checkpoint: Checkpoint, tmp_path: Path) -> Quick:
    """Return `quick_images(out, **changes)`: a run of two epochs of three steps on tiny images."""

    def run(out: str = "run", **changes: Any) -> Run:
        options: dict[str, Any] = {
            "train": tiny.images(24),
            "model": image_checkpoint("convnet"),
            "dev": tiny.images(12, seed=1),
            "head": "random",
            "epochs": 2,
            "batch_size": 8,
            "optimizer": "sgd",
            "lr": 0.05,
            "seed": 3,
            "out": tmp_path / out,
        }
        options |= changes
        return train(options.pop("train"), **options)

    return run


def test_of_a_folder_with_splits_each_data_set_is_its_own(quick_images: Quick, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for seed, (split, rows) in enumerate([("train", 24), ("val", 9), ("test", 6)]):
        tiny.image_folder(folder / split, rows, seed=seed)
    run = quick_images(train=folder, dev=folder, test=folder, ood={"other": folder})
    judged = {name: figures["before"]["n"] for name, figures in run.metrics["splits"].items()}
    assert judged == {"dev": 9, "test": 6, "ood-other": 6}
    assert read_table(tmp_path / "run" / "datamap.parquet").num_rows == 24


def test_a_folder_of_images_becomes_a_calibrated_checkpoint(tmp_path: Path, image_checkpoint: Checkpoint) -> None:
    folder = tiny.image_folder(tmp_path / "images", 60)
    test = tiny.image_folder(tmp_path / "test", 30, seed=1)
    run = train(
        folder,
        test=test,
        model=image_checkpoint("convnet"),
        optimizer="sgd",
        lr=0.05,
        epochs=6,
        batch_size=10,
        augment="none",
        out=tmp_path / "run",
    )
    assert run.metrics["splits"]["test"]["after"]["accuracy"] > 0.8
    classifier = calmix.load(run.folder)
    written = read_table(run.folder / "predictions-test.parquet")
    expected = np.stack([written[f"p_{name}"].to_numpy() for name in tiny.LABELS], axis=1)
    np.testing.assert_allclose(classifier.probabilities(read_examples(test)), expected, atol=1e-5)
    logits = np.array(written["logits"].to_pylist())
    np.testing.assert_allclose(Temperature(run.metrics["temperature"])(logits), expected, atol=1e-9)
    about = read_table(run.folder / "datamap.parquet")
    assert {Path(name).suffix for name in about["image_from"].to_pylist()} == {".png"}
    assert "image" not in about.column_names


def test_networks_from_random_weights_are_trained_with_their_own_defaults(tmp_path: Path) -> None:
    run = train(
        tiny.images(6, grey=True), dev=tiny.images(6, grey=True, seed=1), model="resnet18", epochs=1, out=tmp_path
    )
    config = (run.folder / "run.toml").read_text()
    for line in ('optimizer = "sgd"', "lr = 0.02", "weight_decay = 0.0005", 'schedule = "steps"', "batch_size = 32"):
        assert line in config
    told = json.loads((run.model / "preprocessor_config.json").read_text())
    pixels = np.stack(list(tiny.images(6, grey=True).images)) / 255
    assert told["image_mean"] == pytest.approx([pixels.mean()], abs=1e-5)
    assert told["image_std"] == pytest.approx([pixels.std()], abs=1e-5)
    assert calmix.load(run.model).model.config.num_channels == 1


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"distil", "back-translation"}))
def test_every_recipe_that_does_not_need_words_trains_on_images(quick_images: Quick, recipe: str) -> None:
    run = quick_images(recipe=recipe)
    assert all(np.isfinite(epoch["loss"]) for epoch in run.metrics["epochs"])
    assert (run.folder / "model" / "model.safetensors").is_file()


def test_images_cannot_be_translated(quick_images: Quick) -> None:
    with pytest.raises(InputError, match="only texts can be translated"):
        quick_images(recipe="back-translation")


def test_a_network_of_images_teaches_another(quick_images: Quick) -> None:
    teacher = quick_images("teacher")
    taught = {"recipe": "distil", "options": {"alpha": 0.0}, "teacher": teacher.folder, "augment": "none"}
    kept, live = (quick_images(f"student-{cached}", cache_teacher=cached, **taught) for cached in (True, False))
    losses = [[epoch["loss"] for epoch in run.metrics["epochs"]] for run in (kept, live)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][0] > 0


def test_a_seed_decides_every_bit(quick_images: Quick, outcome: Any) -> None:
    first, again, other = (
        outcome(quick_images(name, seed=seed).folder) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    weights = "model/model.safetensors"
    assert first[weights] == again[weights]
    assert first["metrics.json"] == again["metrics.json"]
    assert first[weights] != other[weights]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("recipe", ["erm", "input-mixup"])
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(quick_images: Quick, outcome: Any, recipe: str) -> None:
    def stop(progress: Any) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    whole = outcome(quick_images("whole", recipe=recipe).folder)
    with pytest.raises(Interrupted, match="saved"):
        quick_images("stopped", recipe=recipe, on_progress=stop)
    resumed = outcome(quick_images("stopped", recipe=recipe).folder)
    assert resumed["model/model.safetensors"] == whole["model/model.safetensors"]
    assert resumed["metrics.json"] == whole["metrics.json"]


def test_augmentation_changes_training_and_not_what_is_measured(quick_images: Quick) -> None:
    runs = [quick_images(name, augment=name) for name in ("none", "crop", "crop-flip")]
    assert len({run.metrics["epochs"][0]["loss"] for run in runs}) == 3
    again = calmix.load(runs[2].folder).logits(tiny.images(12, seed=1))
    written = np.array(read_table(runs[2].folder / "predictions-dev.parquet")["logits"].to_pylist())
    np.testing.assert_allclose(again * runs[2].metrics["temperature"], written, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"recipe": "input-mixup", "accumulate": 2}, {"record": "evaluation"}])
def test_streamed_images_give_the_same_run(quick_images: Quick, outcome: Any, changes: Any) -> None:
    kept, streamed = (outcome(quick_images(str(stream), stream=stream, **changes).folder) for stream in (False, True))
    assert streamed["model/model.safetensors"] == kept["model/model.safetensors"]
    assert streamed["metrics.json"] == kept["metrics.json"]


def test_images_that_memory_does_not_hold_are_streamed_and_said_to_be(
    quick_images: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calmix.models.streaming._SHARE", 0.0)
    assert any("decoded anew in every epoch" in note for note in quick_images().metrics["notes"])


@pytest.mark.parametrize("changes", [{"augment": "blur"}, {"image_size": 0}, {"optimizer": "adam"}])
def test_settings_that_cannot_be_meant_are_refused(quick_images: Quick, tmp_path: Path, changes: Any) -> None:
    with pytest.raises(InputError, match="--"):
        quick_images(**changes)
    assert not (tmp_path / "run").exists()


def test_texts_and_images_are_not_mixed(quick_images: Quick, checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match="holds text data, the training set image data"):
        quick_images(dev=tiny.examples(6))
    with pytest.raises(InputError, match="no image classification model for architecture 'bert'"):
        quick_images(model=checkpoint("bert"))


def test_a_dry_run_tells_what_it_would_take(quick_images: Quick, tmp_path: Path) -> None:
    run = quick_images(dry_run=True)
    assert run.metrics["steps"] == 6
    assert run.metrics["seconds"] > 0
    assert not (tmp_path / "run").exists()


def test_images_are_mapped_with_an_aum_filter(image_checkpoint: Checkpoint, tmp_path: Path) -> None:
    done = survey(
        tiny.images(60),
        out=tmp_path / "map",
        model=str(image_checkpoint("convnet")),
        epochs=2,
        batch_size=12,
        optimizer="sgd",
        lr=0.05,
        filtered=True,
    )
    assert done.dynamics.observations.tolist() == [2] * 60
    assert done.verdicts is not None
    assert "image_from" in read_table(tmp_path / "map" / "datamap.parquet").column_names


def test_what_is_saved_is_laid_out_as_everybody_expects(quick_images: Quick) -> None:
    model = calmix.load(quick_images().folder).model
    assert all(weight.is_contiguous() for weight in model.parameters())
    assert all(torch.isfinite(weight).all() for weight in model.state_dict().values())
