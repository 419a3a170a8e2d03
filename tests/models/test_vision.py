"""Classifiers of images: how they prepare what they read, a head for other labels, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import SMALL, identity, label_names_of, load, load_for_images, load_for_training, load_trained
from calmix.models.pixels import Preparation
from calmix.models.vision import preparation_for

Checkpoint = Callable[..., Path]
_HOW = Preparation(8, 8, (0.0,) * 3, (1.0,) * 3)


def test_networks_without_weights_take_images_as_they_are() -> None:
    how, unmeasured = preparation_for("resnet18", tiny.images(6))
    assert (how.height, how.width, how.channels, unmeasured) == (8, 8, 3, True)
    how, unmeasured = preparation_for("vgg16", tiny.images(6, grey=True), size=12)
    assert (how.height, how.width, how.channels, unmeasured) == (12, 12, 1, True)


def test_a_pretrained_network_says_how_images_are_prepared(image_checkpoint: Checkpoint) -> None:
    name = str(image_checkpoint("resnet"))
    how, unmeasured = preparation_for(name, tiny.images(6))
    assert how == Preparation(8, 8, (0.4,) * 3, (0.3,) * 3)
    assert not unmeasured
    assert preparation_for(name, tiny.images(6), size=16)[0].height == 16


def test_what_a_checkpoint_leaves_open_is_taken_from_its_configuration_and_measured(
    image_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = shutil.copytree(image_checkpoint("vit"), tmp_path / "vit")
    (folder / "preprocessor_config.json").unlink()
    big = Examples.from_images([np.zeros((40, 30), np.uint8)])
    how, unmeasured = preparation_for(str(folder), big)
    assert (how.height, how.width, how.channels, unmeasured) == (8, 8, 3, True)


def test_every_architecture_gets_a_head_for_the_labels(image_architecture: str, image_checkpoint: Checkpoint) -> None:
    names = ("a", "b", "c", "d")
    model = load_for_images(str(image_checkpoint(image_architecture)), label_names=names, how=_HOW)[0]
    assert label_names_of(model) == names
    assert model(torch.zeros(2, 3, 8, 8)).logits.shape == (2, 4)


def test_what_is_pretrained_stays_and_the_head_is_drawn_from_the_seed(image_checkpoint: Checkpoint) -> None:
    folder = str(image_checkpoint("convnet"))
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(load_for_images(folder, label_names=("a", "b"), how=_HOW)[0].state_dict())
    body = [name for name in found[0] if name.startswith("body")]
    assert all(torch.equal(found[0][name], found[2][name]) for name in body)
    assert torch.equal(found[0]["classifier.weight"], found[1]["classifier.weight"])
    assert not torch.equal(found[0]["classifier.weight"], found[2]["classifier.weight"])


def test_a_size_that_a_network_cannot_read_is_refused(image_checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match="cannot read images of 12 × 12 pixels with 3 channels"):
        load_for_images(
            str(image_checkpoint("vit")), label_names=("a", "b"), how=Preparation(12, 12, (0.0,) * 3, (1.0,) * 3)
        )


def test_texts_and_images_do_not_go_together(checkpoint: Checkpoint, image_checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match=r"bert\S*: reads no images \(.* for architecture 'bert'\); give resnet18"):
        load_for_images(str(checkpoint("bert")), label_names=("a", "b"), how=_HOW)
    with pytest.raises(InputError, match="resnet18: is a network for images"):
        load_for_training("resnet18", label_names=("a", "b"))
    with pytest.raises(InputError, match="sentence-cnn: is a network for texts, and these are images; give resnet"):
        preparation_for("sentence-cnn", tiny.images(6))
    with pytest.raises(InputError, match="no sequence classification model for architecture 'resnet'"):
        load_for_training(str(image_checkpoint("resnet")), label_names=("a", "b"))


def test_weights_of_something_else_are_refused(image_checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = shutil.copytree(image_checkpoint("resnet"), tmp_path / "resnet")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"depths": [3, 1]}))
    with pytest.raises(InputError, match="its weights lack"):
        load_for_images(str(folder), label_names=("a", "b"), how=_HOW)
    with pytest.raises(InputError, match="its weights lack"):
        load_trained(folder)


def test_a_trained_network_needs_to_say_how_images_are_prepared(image_checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = shutil.copytree(image_checkpoint("resnet"), tmp_path / "resnet")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"has no preprocessor_config\.json"):
        load_trained(folder)


def test_any_trained_classifier_of_images_predicts(
    image_architecture: str, image_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    classifier = load(image_checkpoint(image_architecture))
    pixels, _ = tiny.pixels(5)
    of_pixels = classifier.predict_proba(pixels)
    assert of_pixels.shape == (5, 3)
    np.testing.assert_allclose(of_pixels.sum(1), 1)
    folder = tiny.image_folder(tmp_path, 5)
    files = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    np.testing.assert_allclose(classifier.predict_proba(files), of_pixels, rtol=1e-5)
    assert set(classifier.predict([files[0].read_bytes(), str(files[1])])) <= set(tiny.LABELS)


def test_a_classifier_of_images_reads_no_texts_and_the_other_way_round(
    checkpoint: Checkpoint, image_checkpoint: Checkpoint
) -> None:
    with pytest.raises(InputError, match="holds text data, but this model reads images"):
        load(image_checkpoint("resnet")).logits(tiny.examples(3))
    with pytest.raises(InputError, match="holds image data, but this model reads plain texts"):
        load(checkpoint("bert")).logits(tiny.images(3))


@pytest.mark.parametrize("name", SMALL)
def test_networks_without_weights_are_known_by_their_names(name: str) -> None:
    assert identity(name) == f"{name}@calmix"
