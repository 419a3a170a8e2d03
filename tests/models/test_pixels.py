"""Pixels: prepared as the checkpoint says, kept as bytes, normalised and augmented in the batch."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models.pixels import (
    Preparation,
    common_size,
    in_threads,
    measured,
    pack_images,
    prepared,
    read_preparation,
)

_THREE = SimpleNamespace(num_channels=3)
_PLAIN = Preparation(8, 8, (0.0,) * 3, (1.0,) * 3)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("edge", [None, 12])
def test_a_preparation_is_read_as_it_was_saved(edge: int | None, tmp_path: Path) -> None:
    how = Preparation(8, 6, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), edge, 3)
    how.save_pretrained(tmp_path)
    assert read_preparation(str(tmp_path), _THREE) == how


def test_transformers_prepares_an_image_the_same_way(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import AutoImageProcessor

    image = np.random.default_rng(0).integers(0, 256, (21, 30, 3)).astype(np.uint8)
    for edge in (None, 12):
        how = Preparation(8, 8, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), edge)
        how.save_pretrained(tmp_path)
        theirs = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(
            Image.fromarray(image), return_tensors="pt"
        )
        ours = pack_images(Examples.from_images([image]), how).batch(torch.tensor([0]))
        torch.testing.assert_close(ours["pixel_values"], theirs["pixel_values"], rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"size": 16}, (16, 16, None)),
        ({"size": {"height": 16, "width": 12}}, (16, 12, None)),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True}, (224, 224, 256)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224, 256)),  # ConvNeXt
        ({"size": {"shortest_edge": 384}, "crop_pct": 1.0}, (384, 384, None)),
        ({"size": {"height": 20, "width": 20}, "crop_size": {"height": 16, "width": 16}}, (20, 20, None)),
    ],
)
def test_every_way_to_tell_a_size_is_understood(
    told: dict[str, object], expected: tuple[int, int, int | None], tmp_path: Path
) -> None:
    about = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, **told}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about))
    how = read_preparation(str(tmp_path), _THREE)
    assert how is not None
    assert (how.height, how.width, how.edge) == expected


@pytest.mark.parametrize(
    "told",
    [
        {"size": 16},
        {"size": "large", "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {"size": 16, "image_mean": [0.5], "image_std": [0.5]},
        {"size": 16, "image_mean": [0.5] * 3, "image_std": [0.0] * 3},
    ],
)
def test_a_preparation_that_makes_no_sense_is_refused(told: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"preprocessor_config\.json cannot be used"):
        read_preparation(str(tmp_path), _THREE)


def test_a_checkpoint_may_say_nothing_about_images(tmp_path: Path) -> None:
    assert read_preparation(str(tmp_path), _THREE) is None


def test_small_images_of_one_size_keep_it_and_others_are_made_32_pixels() -> None:
    def sized(*shapes: tuple[int, int]) -> Examples:
        return Examples.from_images([np.full(shape, i, np.uint8) for i, shape in enumerate(shapes)])

    assert common_size(sized((28, 20), (28, 20))) == (28, 20)
    assert common_size(sized((28, 20), (20, 28))) == (32, 32)
    assert common_size(sized((65, 65))) == (32, 32)


def test_channels_become_those_of_the_network() -> None:
    grey = np.array([[10, 200]], np.uint8)
    colour = np.stack([grey] * 3, axis=-1)
    three, one = Preparation(1, 2, (0.0,) * 3, (1.0,) * 3), Preparation(1, 2, (0.0,), (1.0,))
    assert np.array_equal(prepared(grey, three), colour)
    assert np.array_equal(prepared(colour, one), grey[..., None])
    assert np.array_equal(prepared(grey, one), grey[..., None])


def test_the_middle_is_cut_out_where_a_checkpoint_says_so() -> None:
    image = np.zeros((4, 8, 3), np.uint8)
    image[:, 2:6] = 255
    assert (prepared(image, Preparation(4, 4, (0.0,) * 3, (1.0,) * 3, edge=4)) == 255).all()


def test_a_single_pixel_becomes_an_image_of_its_colour() -> None:
    assert (prepared(np.full((1, 1, 3), 7, np.uint8), _PLAIN) == 7).all()


@pytest.mark.parametrize("grey", [False, True])
def test_measured_pixels_have_mean_zero_and_deviation_one(grey: bool) -> None:
    examples = tiny.images(12, grey=grey)
    how = Preparation(8, 8, (0.0,), (1.0,)) if grey else _PLAIN
    pixels, how = measured(pack_images(examples, how), how)
    batch = pixels.batch(torch.arange(12))["pixel_values"]
    assert batch.shape == (12, 1 if grey else 3, 8, 8)
    assert batch.is_contiguous(memory_format=torch.channels_last) or grey
    torch.testing.assert_close(batch.mean((0, 2, 3)), torch.zeros(how.channels), atol=1e-4, rtol=0)
    torch.testing.assert_close(batch.std((0, 2, 3), correction=0), torch.ones(how.channels), atol=1e-4, rtol=0)


def test_images_of_one_colour_have_a_spread_to_divide_by() -> None:
    examples = Examples.from_images([np.zeros((8, 8), np.uint8)])
    _, how = measured(pack_images(examples, Preparation(8, 8, (0.0,), (1.0,))), Preparation(8, 8, (0.0,), (1.0,)))
    assert how.std[0] > 0


def test_nothing_is_done_to_images_unless_asked() -> None:
    pixels = pack_images(tiny.images(6), _PLAIN)
    rows = torch.tensor([4, 1])
    augmented = pixels.augmented(rows, "none", _generator())
    assert torch.equal(augmented["pixel_values"], pixels.batch(rows)["pixel_values"])


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_cropped_image_is_the_image_moved_with_black_coming_in(seed: int) -> None:
    pixels = pack_images(tiny.images(3), _PLAIN)
    clean = pixels.batch(torch.arange(3))["pixel_values"]
    padded = torch.nn.functional.pad(clean, (1, 1, 1, 1))
    views = [padded[:, :, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    flipped = [view.flip(-1) for view in views]
    for augment, allowed in (("crop", views), ("crop-flip", views + flipped)):
        found = pixels.augmented(torch.arange(3), augment, _generator(seed))["pixel_values"]  # type: ignore[arg-type]
        for row in range(3):
            assert any(torch.equal(found[row], view[row]) for view in allowed)


def test_augmentation_is_decided_by_the_generator_and_differs_between_images() -> None:
    image = tiny.pixels(1)[0][0]
    pixels = pack_images(Examples.from_images([image] * 64), _PLAIN)
    rows = torch.arange(64)
    first, again, other = (pixels.augmented(rows, "crop-flip", _generator(s))["pixel_values"] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(view.flatten().tolist()) for view in first}) > 9


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    folder = tiny.image_folder(tmp_path, 6)
    broken = folder / "animal" / "000.png"
    broken.write_bytes(broken.read_bytes()[:60])
    from calmix.data import read_examples

    with pytest.raises(InputError, match=r"000\.png: the image is cut short or damaged"):
        pack_images(read_examples(folder), _PLAIN)


def test_of_several_mistakes_the_first_is_told() -> None:
    def work(place: int) -> None:
        if place in (70, 200):
            raise InputError(str(place))

    with pytest.raises(InputError, match="70"):
        in_threads(work, 300)
