"""From the bytes of an image file to an array, whatever the file turns out to be."""

import re
import warnings
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.errors import InputError

__all__ = ["MOST_BYTES", "MOST_PIXELS", "check_image", "colour_file", "decode_image", "grey_file", "is_grey"]

MOST_PIXELS = 80_000_000  # below what Pillow itself warns of
MOST_BYTES = 1 << 28
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
_GREY_HEADER = re.compile(rb"P5 (\d{1,9}) (\d{1,9}) 255\n")
_SEE_THROUGH = ("LA", "PA", "RGBA", "La", "RGBa")


def check_image(data: bytes, name: str) -> tuple[int, int]:
    """The width and height that the header of an image tells; `InputError` if there is none or they are too large.

    No pixel is decoded: an image cut short behind its header passes here and is refused by `decode_image`.
    """
    grey = _GREY_HEADER.match(data)
    if grey:
        return _bounded(int(grey[1]), int(grey[2]), name)
    with warnings.catch_warnings():
        # Pillow warns of large images, which are refused here anyway.
        warnings.simplefilter("ignore")
        return _opened(data, name).size  # type: ignore[no-any-return]


def decode_image(data: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels of an image: RGB [height, width, 3], or [height, width] for the grey images of IDX files.

    PNG, JPEG, BMP, WebP and GIF (its first frame). Palettes, CMYK and grey become RGB, 16 bits become 8, a
    transparent image is laid on white, and a photo is turned the way its EXIF entry says.

    Args:
        data: the bytes of the file.
        name: what messages call it.
    """
    grey = _GREY_HEADER.match(data)
    if grey:
        return _grey_pixels(data, grey, name)
    image = _opened(data, name)
    try:
        from PIL import ImageOps

        image.load()
        return np.asarray(_rgb(ImageOps.exif_transpose(image)), dtype=np.uint8)
    except MemoryError:
        raise
    except Exception as error:  # every format has its own
        raise InputError(f"{name}: the image is cut short or damaged; replace it or take it out") from error


def is_grey(data: bytes) -> bool:
    """Whether an image is one of those that `grey_file` makes."""
    return _GREY_HEADER.match(data) is not None


def grey_file(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a binary PGM file with these grey pixels [height, width], which `decode_image` reads."""
    height, width = pixels.shape
    return b"P5 %d %d 255\n" % (width, height) + pixels.tobytes()


def colour_file(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file with these pixels [height, width, 3]."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _opened(data: bytes, name: str) -> Any:
    """The image behind a header that was read and found reasonable; its pixels are not decoded yet."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError(f"{name}: reading images needs Pillow; pip install calmix[vision]") from error
    if not data:
        raise InputError(f"{name}: the image is empty (zero bytes); replace it or take it out")
    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_large(name) from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name}: this is no PNG, JPEG, BMP, WebP or GIF image, whatever its name says; "
            "convert it, replace it or take it out"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # every format has its own
        raise InputError(f"{name}: the header of the image is damaged; replace it or take it out") from error
    _bounded(*image.size, name)
    return image


def _bounded(width: int, height: int, name: str) -> tuple[int, int]:
    if width * height > MOST_PIXELS:
        raise _too_large(name, f"{width} × {height}, ")
    if not width * height:
        raise InputError(f"{name}: the image has no pixels; replace it or take it out")
    return width, height


def _too_large(name: str, size: str = "") -> InputError:
    return InputError(
        f"{name}: {size}more than {MOST_PIXELS // 1_000_000} million pixels: too large; scale the image down"
    )


def _grey_pixels(data: bytes, header: re.Match[bytes], name: str) -> NDArray[np.uint8]:
    width, height = _bounded(int(header[1]), int(header[2]), name)
    pixels = np.frombuffer(data, dtype=np.uint8, offset=header.end())
    if len(pixels) != width * height:
        raise InputError(f"{name}: the image is cut short or damaged; replace it or take it out")
    return pixels.reshape(height, width).copy()


def _rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):  # grey with 16 bits, in one of several layouts
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in _SEE_THROUGH or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
