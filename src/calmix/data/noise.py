"""Data that means nothing, shaped like data that does: images of Gaussian noise, texts of random words."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data.decoding import colour_file, grey_file
from calmix.data.examples import Examples
from calmix.data.images import image_columns, image_key
from calmix.errors import InputError

__all__ = ["gaussian_noise", "random_texts"]


def gaussian_noise(examples: Examples, *, generator: np.random.Generator, rows: int | None = None) -> Examples:
    """Return unlabelled images of noise with the mean and variance of each channel of these images, and their sizes.

    Pixels are cut to 0 … 255. `rows` asks for so many images; by default there are as many as examples.
    """
    if examples.kind != "image":
        raise InputError(f"{examples.source or 'the data'}: holds {examples.kind} data; Gaussian noise is for images")
    count, total, squares, shapes = 0, np.zeros(1), np.zeros(1), []
    for image in examples.images:
        shapes.append(image.shape)
        pixels = image.reshape(image.shape[0] * image.shape[1], -1).astype(np.float64)
        total, squares, count = total + pixels.sum(0), squares + np.square(pixels).sum(0), count + len(pixels)
    mean = total / count
    deviation = np.sqrt(np.maximum(0, squares / count - mean**2))
    data = []
    for row in range(len(examples) if rows is None else rows):
        shape = shapes[row % len(shapes)]
        drawn = generator.normal(mean, deviation, (shape[0], shape[1], len(mean))).round().clip(0, 255)
        data.append(_file(drawn.astype(np.uint8).reshape(shape)))
    keys = [image_key(each) for each in data]
    names = [f"gaussian-noise: image {row + 1}" for row in range(len(data))]
    return _unlabelled("gaussian-noise", image_columns(data, names, keys), len(data))


def random_texts(
    examples: Examples, words: Sequence[str], lengths: dict[str, list[list[int]]], *, generator: np.random.Generator
) -> Examples:
    """Return unlabelled rows of the same shape as these, every word drawn from `words`.

    `lengths` has, for each column of texts, how many words each of a row's texts gets (choices are several).
    """
    columns: dict[str, pa.Array] = {}
    for name, rows in lengths.items():
        drawn = [[" ".join(generator.choice(words, max(1, length))) for length in row] for row in rows]
        if name == "choices":
            columns[name] = pa.array(drawn, pa.list_(pa.string()))
        else:
            columns[name] = pa.array([row[0] for row in drawn], pa.string())
    return _unlabelled("random-tokens", columns, len(examples))


def _unlabelled(source: str, columns: dict[str, pa.Array], rows: int) -> Examples:
    ids = pa.array([f"{source}-{row + 1}" for row in range(rows)], pa.string())
    return Examples(pa.table({"id": ids, **columns}), np.full(rows, -1), (), source=source)


def _file(pixels: NDArray[np.uint8]) -> bytes:
    """Return the bytes of an image file that is decoded to exactly these pixels."""
    return grey_file(pixels) if pixels.ndim == 2 else colour_file(pixels)
