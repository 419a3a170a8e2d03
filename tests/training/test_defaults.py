"""Defaults: what suits pretrained weights, and what suits random ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from calmix.training.defaults import with_defaults

_NAMES = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "warmup", "schedule", "clip")
_NOTHING = dict.fromkeys(_NAMES)
_USUAL = {"rows": 10_000, "classes": 2}


@pytest.fixture
def wide(tmp_path: Path) -> Callable[[int], str]:
    """Return `wide(width)`: the folder of a network of that width, of which the configuration is all that is read."""

    def folder(width: int) -> str:
        place = tmp_path / str(width)
        place.mkdir()
        AutoConfig.for_model("bert", hidden_size=width).save_pretrained(place)
        (place / "model.safetensors").touch()
        return str(place)

    return folder


def test_pretrained_models_are_tuned_gently(wide: Any) -> None:
    assert with_defaults(_NOTHING, wide(384), **_USUAL) == dict(
        zip(_NAMES, (3, 32, "adamw", 5e-5, 0.0, 0.1, "linear", 1.0), strict=True)
    )


def test_wider_networks_are_tuned_in_smaller_steps(wide: Any) -> None:
    assert with_defaults(_NOTHING, wide(768), **_USUAL)["lr"] == pytest.approx(2.5e-5)
    assert with_defaults(_NOTHING, wide(1024), **_USUAL)["lr"] == pytest.approx(1.875e-5)


@pytest.mark.parametrize(
    ("rows", "epochs", "batch_size", "lr"),
    [
        (1, 20, 16, 1e-4),
        (96, 20, 16, 1e-4),
        (97, 20, 16, 1e-4),
        (102, 19, 16, 1e-4),
        (640, 3, 16, 1e-4),
        (999, 3, 16, 1e-4),
        (1_000, 4, 32, 5e-5),
        (1_279, 4, 32, 5e-5),
        (1_280, 3, 32, 5e-5),
        (1_000_000, 3, 32, 5e-5),
    ],
)
def test_few_rows_are_seen_more_often_in_smaller_batches_and_larger_steps(
    wide: Any, rows: int, epochs: int, batch_size: int, lr: float
) -> None:
    found = with_defaults(_NOTHING, wide(384), rows=rows, classes=2)
    assert (found["epochs"], found["batch_size"], found["lr"]) == (epochs, batch_size, lr)


@pytest.mark.parametrize(("classes", "lr"), [(0, 5e-5), (49, 5e-5), (50, 1e-4)])
def test_many_classes_are_learnt_in_larger_steps(wide: Any, classes: int, lr: float) -> None:
    found = with_defaults(_NOTHING, wide(384), rows=10_000, classes=classes)
    assert (found["lr"], found["batch_size"]) == (lr, 32)


@pytest.mark.parametrize(("rows", "epochs"), [(1_200, 6), (2_250, 4), (7_500, 3), (600, 6), (100, 20)])
def test_many_classes_are_learnt_in_more_updates(wide: Any, rows: int, epochs: int) -> None:
    assert with_defaults(_NOTHING, wide(384), rows=rows, classes=150)["epochs"] == epochs


@pytest.mark.parametrize("model", ["resnet18", "vgg16"])
def test_random_weights_are_trained_as_thulasidasan_et_al_do_at_a_fifth_of_the_rate(model: str) -> None:
    assert with_defaults(_NOTHING, model, rows=50_000, classes=100) == dict(
        zip(_NAMES, (30, 128, "sgd", 0.02, 5e-4, 0.0, "steps", 0.0), strict=True)
    )


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs"),
    [(24, 32, 60), (1_600, 32, 60), (2_000, 32, 48), (3_200, 32, 30), (8_000, 80, 30), (12_800, 128, 30)],
)
def test_few_images_are_learnt_in_smaller_batches_and_more_epochs(rows: int, batch_size: int, epochs: int) -> None:
    found = with_defaults(_NOTHING, "resnet18", rows=rows, classes=10)
    assert (found["batch_size"], found["epochs"]) == (batch_size, epochs)


@pytest.mark.parametrize("model", ["sentence-cnn", "sentence-cnn:glove.txt"])
def test_a_sentence_cnn_is_trained_in_kims_batches(model: str) -> None:
    assert with_defaults(_NOTHING, model, rows=24, classes=100) == dict(
        zip(_NAMES, (10, 50, "adamw", 1e-3, 0.0, 0.0, "constant", 1.0), strict=True)
    )


def test_what_is_given_stays_even_where_it_is_zero(wide: Any) -> None:
    given = {**_NOTHING, "clip": 0.0, "warmup": 0.0, "epochs": 0}
    found = with_defaults(given, wide(384), rows=24, classes=2)
    assert (found["clip"], found["warmup"], found["epochs"]) == (0.0, 0.0, 0)


def test_the_learning_rate_suits_the_optimiser(wide: Any) -> None:
    assert with_defaults({**_NOTHING, "optimizer": "adamw"}, "resnet18", **_USUAL)["lr"] == 1e-3
    assert with_defaults({**_NOTHING, "optimizer": "sgd"}, wide(384), **_USUAL)["lr"] == 1e-2


def test_settings_that_have_no_default_pass_through(wide: Any) -> None:
    given = {"seed": 3, "bins": None, "lr": None}
    assert with_defaults(given, wide(384), **_USUAL) == {"seed": 3, "bins": None, "lr": 5e-5}
