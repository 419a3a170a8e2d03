"""Streamed images: what was asked for, in order, begun before it is asked for, and mistakes where they belong."""

import threading

import numpy as np
import pytest
import tiny
import torch

from calmix.errors import InputError
from calmix.models import streaming
from calmix.models.pixels import Preparation, measured, pack_images
from calmix.models.streaming import Stream, fits

_HOW = Preparation(8, 8, (0.0,) * 3, (1.0,) * 3)


def _image(row: int) -> np.ndarray:
    return np.full((2, 2, 1), row, np.uint8)


def test_rows_come_in_the_order_asked_for() -> None:
    stream = Stream(_image)
    rows = np.array([5, 1, 3, 1, 9])
    assert stream.take(rows)[:, 0, 0, 0].tolist() == rows.tolist()


def test_what_is_expected_is_decoded_before_it_is_taken() -> None:
    seen: list[int] = []
    begun = threading.Semaphore(0)

    def decode(row: int) -> np.ndarray:
        seen.append(row)
        begun.release()
        return _image(row)

    stream = Stream(decode)
    stream.expect([np.array([k]) for k in range(10)])
    for _ in range(4):
        assert begun.acquire(timeout=10)
    assert sorted(seen) == [0, 1, 2, 3]
    assert stream.take(np.array([0])).flatten().tolist() == [0] * 4
    assert begun.acquire(timeout=10)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_rows_that_were_not_expected_are_decoded_all_the_same() -> None:
    stream = Stream(_image)
    stream.expect([np.array([1, 2]), np.array([3])])
    assert stream.take(np.array([7]))[:, 0, 0, 0].tolist() == [7]
    assert stream.take(np.array([1, 2]))[:, 0, 0, 0].tolist() == [1, 2]
    stream.expect([np.array([4])])
    assert stream.take(np.array([4]))[:, 0, 0, 0].tolist() == [4]


def test_a_mistake_is_raised_by_the_batch_it_is_in() -> None:
    def decode(row: int) -> np.ndarray:
        if row == 2:
            raise InputError("image 2 is cut short")
        return _image(row)

    stream = Stream(decode)
    stream.expect([np.array([0, 1]), np.array([2, 3])])
    stream.take(np.array([0, 1]))
    with pytest.raises(InputError, match="image 2"):
        stream.take(np.array([2, 3]))


def test_streamed_pixels_are_those_that_are_kept() -> None:
    examples = tiny.images(10)
    kept, how = measured(pack_images(examples, _HOW, stream=False), _HOW)
    streamed, same = measured(pack_images(examples, _HOW, stream=True), _HOW)
    assert (how, len(streamed)) == (same, 10)
    rows = np.array([7, 0, 3])
    on_device = torch.from_numpy(rows)
    assert torch.equal(streamed.batch(on_device)["pixel_values"], kept.batch(on_device)["pixel_values"])
    for augment in ("none", "crop", "crop-flip"):
        streamed.stage(rows)
        views = [
            pixels.augmented(on_device, augment, torch.Generator().manual_seed(1))["pixel_values"]  # type: ignore[arg-type]
            for pixels in (kept, streamed)
        ]
        assert torch.equal(*views)


def test_batches_of_a_size_always_lie_in_the_same_place() -> None:
    pixels = pack_images(tiny.images(10), _HOW, stream=True)
    places = []
    for rows in ([0, 1], [5, 6], [2], [7, 8]):
        pixels.stage(np.array(rows))
        places.append(pixels.windows[len(rows)].data_ptr())
    assert places[0] == places[1] == places[3] != places[2]


def test_images_are_streamed_if_memory_does_not_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(1)
    assert not fits(1 << 60)
    assert pack_images(tiny.images(3), _HOW).stream is None
    monkeypatch.setattr(streaming, "_SHARE", 0.0)
    assert pack_images(tiny.images(3), _HOW).stream is not None
