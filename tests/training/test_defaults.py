"""Defaults: what suits pretrained weights, and what suits random ones."""

import pytest

from calmix.training.defaults import with_defaults

_NAMES = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "warmup", "schedule", "clip")
_NOTHING = dict.fromkeys(_NAMES)


def test_pretrained_models_are_tuned_gently() -> None:
    assert with_defaults(_NOTHING, "some/folder") == dict(
        zip(_NAMES, (3, 32, "adamw", 5e-5, 0.0, 0.1, "linear", 1.0), strict=True)
    )


@pytest.mark.parametrize("model", ["resnet18", "vgg16"])
def test_random_weights_are_trained_as_thulasidasan_et_al_do_at_a_fifth_of_the_rate(model: str) -> None:
    assert with_defaults(_NOTHING, model) == dict(
        zip(_NAMES, (30, 128, "sgd", 0.02, 5e-4, 0.0, "steps", 0.0), strict=True)
    )


@pytest.mark.parametrize("model", ["sentence-cnn", "sentence-cnn:glove.txt"])
def test_a_sentence_cnn_is_trained_in_kims_batches(model: str) -> None:
    assert with_defaults(_NOTHING, model) == dict(
        zip(_NAMES, (10, 50, "adamw", 1e-3, 0.0, 0.0, "constant", 1.0), strict=True)
    )


def test_what_is_given_stays_even_where_it_is_zero() -> None:
    given = {**_NOTHING, "clip": 0.0, "warmup": 0.0, "epochs": 7}
    found = with_defaults(given, "some/folder")
    assert (found["clip"], found["warmup"], found["epochs"]) == (0.0, 0.0, 7)


def test_the_learning_rate_suits_the_optimiser() -> None:
    assert with_defaults({**_NOTHING, "optimizer": "adamw"}, "resnet18")["lr"] == 1e-3
    assert with_defaults({**_NOTHING, "optimizer": "sgd"}, "some/folder")["lr"] == 1e-2


def test_settings_that_have_no_default_pass_through() -> None:
    assert with_defaults({"seed": 3, "bins": None, "lr": None}, "minilm") == {"seed": 3, "bins": None, "lr": 5e-5}
