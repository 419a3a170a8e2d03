import builtins
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from calmix.data.decoding import MOST_PIXELS, check_image, decode_image, grey_file
from calmix.errors import InputError

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")


def encoded(image, kind="PNG", **options):
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(height=16, width=24, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def huge_png(width, height):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(["PNG", "BMP"]), st.integers(0, 99))
def test_pixels_come_back_as_they_were(height, width, kind, seed):
    pixels = noise(height, width, seed=seed)
    data = encoded(Image.fromarray(pixels), kind)
    assert check_image(data, "a") == (width, height)
    np.testing.assert_array_equal(decode_image(data, "a"), pixels)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_grey_pixels_stay_grey(height, width, seed):
    pixels = noise(height, width, 1, seed)[..., 0]
    assert check_image(grey_file(pixels), "a") == (width, height)
    found = decode_image(grey_file(pixels), "a")
    np.testing.assert_array_equal(found, pixels)
    assert found.flags.writeable


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_becomes_rgb(kind):
    found = decode_image(encoded(Image.new("RGB", (7, 5), (255, 0, 0)), kind), "a")
    assert (found.shape, found.dtype) == ((5, 7, 3), np.uint8)
    np.testing.assert_allclose(found.astype(int), np.broadcast_to([255, 0, 0], (5, 7, 3)), atol=4)


def test_a_single_pixel_is_an_image():
    assert decode_image(encoded(Image.new("RGB", (1, 1), (1, 2, 3))), "a").tolist() == [[[1, 2, 3]]]


def test_a_palette_is_looked_up():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert decode_image(encoded(image), "a").tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_cmyk_becomes_rgb():
    found = decode_image(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95), "a")
    np.testing.assert_allclose(found[4, 4].astype(int), [255, 0, 0], atol=4)


def test_16_bits_become_8_over_the_whole_range():
    wide = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.uint16)
    found = decode_image(encoded(Image.fromarray(wide)), "a")
    assert found[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]
    assert (found[..., 0] == found[..., 2]).all()


def test_black_and_white_and_grey():
    assert decode_image(encoded(Image.new("1", (1, 1), 1)), "a").tolist() == [[[255, 255, 255]]]
    assert decode_image(encoded(Image.new("L", (1, 1), 7)), "a").tolist() == [[[7, 7, 7]]]


def test_what_is_transparent_lies_on_white():
    image = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    image.putpixel((2, 0), (255, 0, 0, 51))
    assert decode_image(encoded(image), "a").tolist() == [[[255, 255, 255], [0, 0, 0], [255, 204, 204]]]
    grey = Image.new("LA", (1, 1), (0, 0))
    assert decode_image(encoded(grey), "a").tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize(("mode", "colour", "clear"), [("P", 0, 0), ("L", 9, 9), ("RGB", (1, 2, 3), (1, 2, 3))])
def test_a_colour_that_is_marked_as_transparent_lies_on_white(mode, colour, clear):
    image = Image.new(mode, (1, 1), colour)
    assert decode_image(encoded(image, transparency=clear), "a").tolist() == [[[255, 255, 255]]]


def test_a_photo_is_turned_as_its_exif_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right
    image = Image.new("RGB", (20, 10))
    assert decode_image(encoded(image, "JPEG", exif=exif), "a").shape == (20, 10, 3)


def test_of_a_film_the_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    found = decode_image(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), "a")
    assert found[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cat.png: the image is empty"),
        (b"this is a text\n", "cat.png: this is no PNG, JPEG"),
        (b"P5 3", "cat.png: this is no PNG, JPEG"),
        (b"P5 0 4 255\n", "cat.png: the image has no pixels"),
        (huge_png(20_000, 20_000), "cat.png: .*too large; scale the image down"),
        (huge_png(10_000, 8_001), "cat.png: 10000 × 8001, more than 80 million pixels"),
        (b"P5 20000 20000 255\n", "cat.png: 20000 × 20000, more"),
    ],
)
def test_what_is_no_image_is_refused_by_its_header(data, message):
    for read in (check_image, decode_image):
        with pytest.raises(InputError, match=message) as caught:
            read(data, "cat.png")
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_pillow_does_not_warn_of_what_is_refused():
    with pytest.raises(InputError, match="12000 × 12000, more"):
        check_image(huge_png(12_000, 12_000), "cat.png")


def test_the_bound_is_below_that_at_which_pillow_warns():
    assert MOST_PIXELS < Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_cut_in_half_is_refused(kind):
    data = encoded(Image.fromarray(noise(64, 64)), kind)
    with pytest.raises(InputError, match="cat: "):
        decode_image(data[: len(data) // 2], "cat")


def test_a_grey_image_cut_short_is_refused():
    with pytest.raises(InputError, match="cat: the image is cut short"):
        decode_image(grey_file(noise(4, 4, 1)[..., 0])[:-1], "cat")


@given(st.data(), st.sampled_from(FORMATS))
def test_damage_anywhere_gives_an_image_or_one_clear_line(data, kind):
    whole = bytearray(encoded(Image.fromarray(noise(12, 12)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    said = "cat: "
    try:
        found = decode_image(cut, "cat")
        assert (found.dtype, found.shape[2]) == (np.uint8, 3)
    except InputError as error:
        said = str(error)
    assert said.startswith("cat: ")
    assert "\n" not in said


def test_without_pillow_one_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args, **options)

    data = encoded(Image.new("RGB", (1, 1)))
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"^cat: reading images needs Pillow; pip install calmix\[vision\]$"):
        decode_image(data, "cat")
    assert decode_image(grey_file(np.zeros((2, 3), np.uint8)), "cat").shape == (2, 3)
