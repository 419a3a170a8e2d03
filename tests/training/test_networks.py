"""The network of a run and its data: the same for the same seed, read once, and told about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.data import Examples
from calmix.data.reusing import reusing
from calmix.errors import InputError
from calmix.models import Packed, Pixels, Preparation
from calmix.training.networks import load_network

Checkpoint = Callable[..., Path]


def test_texts_come_with_their_tokenizer_and_are_cut(checkpoint: Checkpoint) -> None:
    sets = {"train": tiny.examples(12), "dev": tiny.examples(6, seed=1)}
    loaded = load_network(str(checkpoint("bert")), sets, seed=0, max_length=5)
    assert isinstance(loaded.packed["dev"], Packed)
    assert loaded.reader.model_max_length == 5
    assert loaded.fill["sep"] == loaded.reader.sep_token_id
    assert any("longer than 5 tokens" in note for note in loaded.notes)
    assert loaded.network.config.calmix_kind == "text"  # type: ignore[union-attr]


def test_a_network_whose_answers_depend_on_padding_is_said_to_be_one(
    checkpoint: Checkpoint, checkpoint_of: Checkpoint
) -> None:
    sets = {"train": tiny.examples(12)}
    (note,) = load_network(str(checkpoint_of("fnet")), sets, seed=0, max_length=64).notes
    assert note.startswith("fnet answers otherwise to a text beside longer ones")
    assert load_network(str(checkpoint("bert")), sets, seed=0, max_length=64).notes == []


def test_texts_whose_words_the_vocabulary_does_not_know_are_said(checkpoint: Checkpoint) -> None:
    data = Examples.from_texts([f"моя посылка не пришла {i}" for i in range(20)], ["x", "y"] * 10)
    (note,) = load_network(str(checkpoint("bert")), {"train": data}, seed=0, max_length=64).notes
    assert note.startswith("train: 100% of the words are unknown to the model's vocabulary")


def test_images_come_with_their_preparation(image_checkpoint: Checkpoint) -> None:
    sets = {"train": tiny.images(12), "dev": tiny.images(6, seed=1)}
    loaded = load_network(str(image_checkpoint("resnet")), sets, seed=0, max_length=256)
    assert loaded.reader == Preparation(8, 8, (0.4,) * 3, (0.3,) * 3)
    assert isinstance(loaded.packed["dev"], Pixels)
    assert loaded.fill == {}
    assert loaded.notes == []
    assert loaded.network.config.calmix_kind == "image"  # type: ignore[union-attr]


@pytest.mark.parametrize("grey", [False, True])
def test_without_pretrained_weights_all_sets_are_normalised_by_the_training_set(grey: bool) -> None:
    train, dev = tiny.images(12, grey=grey), tiny.images(6, grey=grey, seed=1)
    loaded = load_network("resnet18", {"train": train, "dev": dev}, seed=0, max_length=256)
    pixels = np.stack(list(train.images)).reshape(-1, 1 if grey else 3) / 255
    np.testing.assert_allclose(loaded.reader.mean, pixels.mean(0), atol=1e-5)
    np.testing.assert_allclose(loaded.reader.std, pixels.std(0), atol=1e-5)
    first, second = loaded.packed["train"], loaded.packed["dev"]
    assert isinstance(first, Pixels)
    assert isinstance(second, Pixels)
    assert torch.equal(first.shift, second.shift)
    assert torch.equal(first.scale, second.scale)


def test_images_of_another_size_are_scaled_and_said_to_be(image_checkpoint: Checkpoint) -> None:
    big = Examples.from_images([np.full((20, 30, 3), i, np.uint8) for i in range(6)], list("ababab"))
    loaded = load_network(str(image_checkpoint("resnet")), {"train": big}, seed=0, max_length=256)
    assert loaded.notes == ["images are scaled to 8 × 8 pixels (--image-size)"]
    loaded = load_network(str(image_checkpoint("resnet")), {"train": big}, seed=0, max_length=256, image_size=12)
    assert loaded.reader.height == 12


def test_runs_of_one_study_share_pixels_but_not_networks(image_checkpoint: Checkpoint) -> None:
    sets = {"train": tiny.images(12)}
    with reusing():
        first, second = (load_network(str(image_checkpoint("convnet")), sets, seed=3, max_length=256) for _ in range(2))
    assert first.packed["train"] is second.packed["train"]
    assert first.network is not second.network
    pairs = zip(first.network.parameters(), second.network.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_network_that_cannot_recompute_says_so(image_checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match="cannot recompute activations"):
        load_network(
            str(image_checkpoint("convnet")),
            {"train": tiny.images(6)},
            seed=0,
            max_length=256,
            gradient_checkpointing=True,
        )


def test_a_config_says_which_columns_were_named_this_time(checkpoint: Checkpoint, tmp_path: Path) -> None:
    sets, place = {"train": tiny.examples(6)}, str(checkpoint("bert"))
    first = load_network(place, sets, seed=0, max_length=8, columns={"text": "Body"})
    assert first.network.config.calmix_columns == {"text": "Body"}  # type: ignore[union-attr]
    first.network.save_pretrained(tmp_path / "trained")  # type: ignore[operator]
    first.reader.save_pretrained(tmp_path / "trained")
    again = load_network(str(tmp_path / "trained"), sets, seed=0, max_length=8)
    assert again.network.config.calmix_columns == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("lengths", [(32, 8), (8, 32)])
def test_runs_that_share_equal_those_alone(quick: Any, outcome: Any, tmp_path: Path, lengths: tuple[int, int]) -> None:
    for length in lengths:
        quick(f"alone-{length}", max_length=length)
    with reusing():
        for length in lengths:
            quick(f"together-{length}", max_length=length)
    for length in lengths:
        alone, together = (outcome(tmp_path / f"{name}-{length}") for name in ("alone", "together"))
        assert alone == together
