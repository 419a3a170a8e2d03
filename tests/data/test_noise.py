"""Data that means nothing, shaped like data that does."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image

from calmix.data import read_examples
from calmix.data.noise import gaussian_noise, random_texts
from calmix.errors import InputError


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve pictures of uneven size whose channels have means and spreads of their own."""
    rng = np.random.default_rng(0)
    for k in range(12):
        folder = tmp_path / "pictures" / "ab"[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.normal([90, 120, 150], [10, 20, 30], (40 + k, 50, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
    return tmp_path / "pictures"


def test_noise_has_mean_and_variance_of_each_channel_and_the_sizes(pictures: Path) -> None:
    examples = read_examples(pictures)
    noise = gaussian_noise(examples, generator=np.random.default_rng(1))
    assert (len(noise), noise.kind, (noise.labels == -1).all()) == (12, "image", True)
    assert [image.shape for image in noise.images] == [image.shape for image in examples.images]
    mine, theirs = (
        np.concatenate([image.reshape(-1, 3) for image in each.images]).astype(float) for each in (noise, examples)
    )
    np.testing.assert_allclose(mine.mean(0), theirs.mean(0), atol=0.6)
    np.testing.assert_allclose(mine.std(0), theirs.std(0), rtol=0.03)
    again = gaussian_noise(examples, generator=np.random.default_rng(1), rows=30)
    assert len(again) == 30
    assert (again.images[0] == noise.images[0]).all()
    assert len(set(again.column("image_key"))) == 30


def test_texts_have_no_pixels_to_draw() -> None:
    with pytest.raises(InputError, match="noise is for images"):
        gaussian_noise(tiny.examples(3), generator=np.random.default_rng(0))


@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
def test_random_texts_have_the_lengths_asked_for_and_no_other_words(kind: str) -> None:
    examples = tiny.examples(8, kind=kind)
    lengths = {"text": [[3 + row] for row in range(8)]}
    if kind == "pair":
        lengths["text_b"] = [[2]] * 8
    if kind == "choices":
        lengths["choices"] = [[1] * len(cell) for cell in examples.column("choices")]
    found = random_texts(examples, ["up", "down"], lengths, generator=np.random.default_rng(0))
    assert found.kind == kind
    assert [len(text.split()) for text in found.column("text")] == [3 + row for row in range(8)]
    assert {word for text in found.column("text") for word in text.split()} == {"up", "down"}
    if kind == "choices":
        assert (found.choice_counts == examples.choice_counts).all()
