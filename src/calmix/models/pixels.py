"""Images → pixels of one size, decoded once and kept as bytes; batches are cut from them on any device."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.data import Examples
from calmix.data.files import write_json
from calmix.errors import InputError
from calmix.models.streaming import Stream, fits
from calmix.processors import share

__all__ = ["Augment", "Pixels", "Preparation", "common_size", "measured", "pack_images", "prepared", "read_preparation"]

Augment = Literal["crop-flip", "crop", "none"]
"""What is done to images in training: moved by up to an eighth of their size, black coming in, and mirrored."""

_LARGEST = 64  # of the networks for small images: others are scaled down to
_USUAL = 32
_BILINEAR = 2  # as Pillow, and the configurations, number it
_CHUNK = 4096
# Pixels in a batch without gradients: enough to fill a GPU; what a processor computes should stay in its cache.
_BATCH_ON_CPU, _BATCH = 1 << 16, 1 << 23


@dataclass(frozen=True)
class Preparation:
    """How an image becomes what a network reads; stands beside a network where a tokenizer does for texts."""

    height: int
    width: int
    mean: tuple[float, ...]
    """Of each channel, pixels being numbers from 0 to 1."""
    std: tuple[float, ...]
    edge: int | None = None
    """Scale the shorter side to so many pixels and cut the middle out; None scales to the size, whatever its shape."""
    resample: int = _BILINEAR

    @property
    def channels(self) -> int:
        """How many channels the network reads: three, or one for grey images."""
        return len(self.mean)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `preprocessor_config.json`, as transformers' image processors read it."""
        size: dict[str, Any] = {"size": {"height": self.height, "width": self.width}}
        if self.edge is not None:
            size = {"size": {"shortest_edge": self.edge}, "crop_size": size["size"]}
        about = {
            "image_processor_type": "ViTImageProcessor" if self.edge is None else "BitImageProcessor",
            "do_resize": True,
            **size,
            "do_center_crop": self.edge is not None,
            "do_convert_rgb": self.channels == 3,
            "resample": self.resample,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        write_json(Path(folder) / "preprocessor_config.json", about)


def read_preparation(name: str, config: Any) -> Preparation | None:
    """Return how a checkpoint, in a folder or on the hub, says that its images are prepared; None if it does not."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        told, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):
        return None
    try:
        return _told(told, config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise InputError(
            f"{name}: its preprocessor_config.json cannot be used; write size, image_mean and image_std into it"
        ) from None


def _told(told: dict[str, Any], config: Any) -> Preparation:
    size, crop = told["size"], told.get("crop_size") if told.get("do_center_crop") else None
    size = {"height": size, "width": size} if isinstance(size, int) else dict(size)
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    edge = size.get("shortest_edge")
    if edge is not None and crop is None:
        # ConvNeXt's rule: below 384 pixels, a little more is scaled to than is cut out.
        crop = {"height": edge, "width": edge}
        edge = int(edge / told["crop_pct"]) if edge < 384 and "crop_pct" in told else None
    final = size if crop is None else crop
    channels = int(getattr(config, "num_channels", 3))
    plain = not told.get("do_normalize", True)
    mean = (0.0,) * channels if plain else tuple(map(float, told["image_mean"]))
    std = (1.0,) * channels if plain else tuple(map(float, told["image_std"]))
    if len(mean) != channels or len(std) != channels or not all(value > 0 for value in std):
        raise ValueError("channels")
    resample = int(told.get("resample") or _BILINEAR)
    return Preparation(int(final["height"]), int(final["width"]), mean, std, edge, resample)


def common_size(examples: Examples) -> tuple[int, int]:
    """Return the height and width to read small images in: their own, if they share it and it is at most 64 pixels."""
    images = examples.images
    # A few hundred tell: should another be of another size, it is scaled.
    sizes = {images.size(int(row)) for row in np.unique(np.linspace(0, len(examples) - 1, 256).astype(int))}
    width, height = sizes.pop()
    return (_USUAL, _USUAL) if sizes or max(width, height) > _LARGEST else (height, width)


def prepared(image: NDArray[np.uint8], how: Preparation) -> NDArray[np.uint8]:
    """Return an image [height, width] or [height, width, 3] in the size and with the channels a network reads."""
    from PIL import Image

    if image.ndim == (2 if how.channels == 1 else 3) and image.shape[:2] == (how.height, how.width) and not how.edge:
        return image if image.ndim == 3 else image[..., None]
    picture = Image.fromarray(image).convert("L" if how.channels == 1 else "RGB")
    if how.edge is None:
        picture = _scaled(picture, how.width, how.height, how.resample)
    else:
        ratio = how.edge / min(picture.size)
        width, height = (max(1, round(side * ratio)) for side in picture.size)
        picture = _scaled(picture, width, height, how.resample)
        left, top = (picture.width - how.width) // 2, (picture.height - how.height) // 2
        picture = picture.crop((left, top, left + how.width, top + how.height))
    found = np.asarray(picture, dtype=np.uint8)
    return found if found.ndim == 3 else found[..., None]


def _scaled(picture: Any, width: int, height: int, resample: int) -> Any:
    return picture if picture.size == (width, height) else picture.resize((width, height), resample)


@dataclass(frozen=True, eq=False)
class Pixels:
    """The pixels of many images of one size, bytes still: an eighth of what they take as floating-point numbers.

    It is to images what `Packed` is to texts. Channels are last, which is how convolutions on GPUs are fastest.
    """

    data: Tensor
    """uint8 [samples, height, width, channels]; without samples where they are streamed."""
    shift: Tensor
    """What is taken from each channel's bytes, before they are multiplied by `scale`."""
    scale: Tensor
    host_lengths: NDArray[np.int64]
    """1 for each sample: no image is longer than another."""
    stream: Stream | None = None
    """What decodes images that are not kept."""
    windows: dict[int, Tensor] = field(default_factory=dict)
    """Where the streamed images of a step lie, for each size of batch: always in the same place, so that captured
    steps find them."""
    counts: None = None
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.host_lengths)

    def to(self, device: torch.device) -> "Pixels":
        """Return the same pixels on `device`."""
        return replace(self, data=self.data.to(device), shift=self.shift.to(device), scale=self.scale.to(device))

    def width(self, rows: NDArray[np.int64], multiple: int | None = None) -> int:
        """Return 1: all images are alike."""
        return 1

    def most(self, device: torch.device) -> int:
        """Return how many images are predicted at once."""
        pixels = _BATCH_ON_CPU if device.type == "cpu" else _BATCH
        return max(1, min(1024, pixels // (self.data.shape[1] * self.data.shape[2])))

    def batch(self, rows: Tensor, *, width: int = 1, choices: int | None = None) -> dict[str, Tensor]:
        """Return what the network reads of `rows`: [rows, channels, height, width]."""
        if self.stream is not None:
            return self._normal(self.stream.take(rows.cpu().numpy()).to(rows.device))
        return self._normal(self.data[rows])

    def stage(self, rows: NDArray[np.int64]) -> None:
        """Bring the images of the step that comes to where it looks for them; nothing to do if all are kept."""
        if self.stream is None:
            return
        found, device = self.stream.take(rows), self.shift.device
        window = self.windows.get(len(rows))
        if window is None:
            window = self.windows[len(rows)] = torch.empty(found.shape, dtype=torch.uint8, device=device)
        window.copy_(found.pin_memory() if device.type == "cuda" else found, non_blocking=True)

    def augmented(self, rows: Tensor, augment: Augment, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the same of rows that were staged, each image moved and perhaps mirrored, without any waiting."""
        store, where = self.data, rows
        if self.stream is not None:
            store, where = self.windows[len(rows)], torch.arange(len(rows), device=rows.device)
        if augment == "none":
            return self._normal(store[where])
        _, height, width, _ = self.data.shape
        x, y = torch.arange(width, device=rows.device), torch.arange(height, device=rows.device)[:, None]
        across, down = (_drawn(2 * (side // 8) + 1, len(rows), generator, rows.device) for side in (width, height))
        if augment == "crop-flip":
            x = torch.where(_drawn(2, len(rows), generator, rows.device) > 0, width - 1 - x, x)
        x, y = x + across - width // 8, y + down - height // 8
        found = store[where[:, None, None], y.clamp(0, height - 1), x.clamp(0, width - 1)]
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        return self._normal(found * inside[..., None])

    def _normal(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"pixel_values": ((pixels.float() - self.shift) * self.scale).permute(0, 3, 1, 2)}


def _drawn(count: int, size: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return whole numbers below `count`, one for each image: [size, 1, 1]."""
    drawn = torch.randint(count, (size, 1, 1), generator=generator, device=generator.device)
    return drawn.to(device)


def pack_images(examples: Examples, how: Preparation, *, stream: bool | None = None) -> Pixels:
    """Return the pixels of every image, decoded by as many threads as this process has processors.

    With `stream` they are decoded each time they are needed instead; None does so if memory does not hold them.
    """
    images = examples.images
    if stream is None:
        stream = not fits(len(examples) * how.height * how.width * how.channels)
    if stream:
        nothing = torch.empty(0, how.height, how.width, how.channels, dtype=torch.uint8)
        return replace(
            _pixels(nothing, how),
            host_lengths=np.ones(len(examples), dtype=np.int64),
            stream=Stream(lambda row: prepared(images[row], how)),
        )
    data = np.empty((len(examples), how.height, how.width, how.channels), dtype=np.uint8)

    def put(row: int) -> None:
        data[row] = prepared(images[row], how)

    in_threads(put, len(examples))
    return _pixels(torch.from_numpy(data), how)


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Do `work` for 0 … count−1; what goes wrong first, by number, is raised."""
    with ThreadPoolExecutor(share()) as pool:
        for _ in pool.map(work, range(count), chunksize=64):
            pass


def _pixels(data: Tensor, how: Preparation) -> Pixels:
    shift, std = (torch.tensor(values, dtype=torch.float32) for values in (how.mean, how.std))
    return Pixels(data, 255 * shift, 1 / (255 * std), np.ones(len(data), dtype=np.int64))


def measured(pixels: Pixels, how: Preparation) -> tuple[Pixels, Preparation]:
    """Return both with the mean and standard deviation of these very pixels, channel by channel."""
    # Sums of whole numbers: exact, whatever their order.
    first, second = torch.zeros(2, how.channels, dtype=torch.int64)
    for start in range(0, len(pixels), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(pixels)))
        part = pixels.data[rows] if pixels.stream is None else pixels.stream.take(rows)
        first += part.sum((0, 1, 2), dtype=torch.int64)
        second += part.int().square_().sum((0, 1, 2), dtype=torch.int64)
    count = len(pixels) * how.height * how.width
    mean = first.double() / count
    variance = (second.double() / count - mean.square()) / 255**2
    # Images that are all of one colour have no spread to divide by.
    std = variance.clamp_min(1e-4).sqrt()
    known = replace(
        how,
        mean=tuple(round(value, 6) for value in (mean / 255).tolist()),
        std=tuple(round(value, 6) for value in std.tolist()),
    )
    fresh = _pixels(pixels.data, known)
    return replace(pixels, shift=fresh.shift, scale=fresh.scale), known
