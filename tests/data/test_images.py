import os
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from calmix.data import duplicates, leakage, read_examples, split_examples, write_table
from calmix.data.images import holds_images, image_key, read_image
from calmix.errors import InputError


def png(value, size=(2, 3)):
    stream = BytesIO()
    Image.new("RGB", size, (value, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def table(tmp_path):
    def make(images, name="image", kind=None, **others):
        path = tmp_path / "t.parquet"
        columns = {name: pa.array(images, kind), "label": ["a", "b"] * (len(images) // 2) + ["a"] * (len(images) % 2)}
        write_table(pa.table({**columns, **others}), path)
        return path

    return make


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_in_a_column(table, kind):
    examples = read_examples(table([png(1), png(2), png(3)], kind=kind, page=["x", "y", "z"]))
    assert examples.kind == "image"
    assert len(examples) == len(examples.images) == 3
    assert examples.label_names == ("a", "b")
    assert examples.labels.tolist() == [0, 1, 0]
    assert [image[0, 0, 0] for image in examples.images] == [1, 2, 3]
    assert examples.images[0].shape == (3, 2, 3)
    assert examples.column("page") == ["x", "y", "z"]
    assert repr(examples).startswith("Examples(3 × image, 2 labels")


def test_structs_of_the_hub_are_the_same_examples_as_bytes(table):
    images = [png(1), png(2)]
    plain = read_examples(table(images))
    structs = read_examples(table([{"bytes": data, "path": f"{k}.png"} for k, data in enumerate(images)], name="img"))
    assert structs.digest() == plain.digest()
    assert structs.ids == plain.ids
    assert structs.column("image_from")[1].endswith("t.parquet: row 2 ('1.png')")


def test_ids_and_the_digest_come_from_the_bytes(table):
    first = read_examples(table([png(1), png(2), png(1)]))
    assert first.ids[2] == f"{first.ids[0]}-2"
    other = read_examples(table([png(1), png(3), png(1)]))
    assert (other.ids[0], other.ids[1] != first.ids[1]) == (first.ids[0], True)
    assert other.digest() != first.digest()


def test_rows_can_be_taken_and_split_and_copies_are_seen(table):
    examples = read_examples(table([png(k % 18) for k in range(20)]))
    taken = examples.take([5, 2])
    assert [image[0, 0, 0] for image in taken.images] == [5, 2]
    train, dev = split_examples(examples, dev_fraction=0.3)
    assert len(train) + len(dev) == 20
    assert leakage(train, dev) == 0
    assert duplicates(examples).rows == 2


def test_a_table_with_text_is_read_as_text_and_text_has_no_images(table):
    examples = read_examples(table([png(1), png(2)], text=["x", "y"]))
    assert examples.kind == "text"
    with pytest.raises(ValueError, match="holds text data, no images"):
        _ = examples.images


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([png(1), b""], r"t.parquet: row 2: the image is empty"),
        ([png(1), b"hello"], r"t.parquet: row 2: this is no PNG"),
        ([png(1), None], r"t.parquet: row 2: no bytes of an image in column 'image'; embed"),
        (
            [{"bytes": png(1), "path": "a.png"}, {"bytes": None, "path": "/etc/x.png"}],
            r"row 2 \('/etc/x.png'\): no bytes",
        ),
    ],
)
def test_a_row_without_an_image_is_named(table, images, message):
    with pytest.raises(InputError, match=message):
        read_examples(table(images))


def test_an_image_cut_short_is_named_when_it_is_decoded(table):
    data = png(1, (50, 50))
    examples = read_examples(table([png(1), data[:-30]]))
    assert examples.images[0].shape == (3, 2, 3)
    with pytest.raises(InputError, match="row 2: the image is cut short"):
        examples.take([1]).images[0]


def test_two_columns_of_images_are_a_question(table):
    with pytest.raises(InputError, match="several columns could be the image"):
        read_examples(table([png(1)], name="img", photo=[png(2)]))


def test_a_column_of_numbers_called_image_is_no_image(table):
    with pytest.raises(InputError, match="no column looks like the text"):
        read_examples(table([1, 2]))


def test_what_may_hold_images():
    assert holds_images(pa.binary())
    assert holds_images(pa.struct({"bytes": pa.large_binary(), "path": pa.string()}))
    assert not holds_images(pa.struct({"bytes": pa.int64()}))
    assert not holds_images(pa.string())


def test_keys_tell_files_apart():
    assert image_key(b"a") == image_key(b"a") != image_key(b"b")
    assert len(image_key(b"")) == 32


def test_only_plain_files_of_a_reasonable_size_are_read(tmp_path):
    (tmp_path / "a.png").write_bytes(b"abc")
    assert read_image(tmp_path / "a.png") == b"abc"
    with pytest.raises(InputError, match=r"gone.png: cannot be read"):
        read_image(tmp_path / "gone.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match=r"pipe.png: this is not a plain file"):
        read_image(tmp_path / "pipe.png")
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate((1 << 28) + 1)
    with pytest.raises(InputError, match=r"large.png: more than 256 MiB"):
        read_image(tmp_path / "large.png")


def test_images_are_arrays_of_bytes(table):
    assert read_examples(table([png(1)])).images[0].dtype == np.uint8
