import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data import read_examples
from calmix.data.idx import find_idx, is_idx, read_idx
from calmix.errors import InputError


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)
LABELS = np.array([7, 0, 7, 10], dtype=np.uint8)


@pytest.fixture
def place(tmp_path):
    for prefix, part in (("train", slice(0, 3)), ("t10k", slice(1, 4))):
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES[part])))
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS[part])))
    return tmp_path


def test_images_and_the_labels_beside_them(place):
    examples = read_examples(place / "train-images-idx3-ubyte.gz")
    assert examples.kind == "image"
    assert examples.label_names == ("0", "7")
    assert examples.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(np.stack(list(examples.images)), IMAGES[:3])


def test_a_folder_of_them_by_split(place):
    assert read_examples(place).labels.tolist() == [1, 0, 1]
    test = read_examples(place, split="test")
    assert test.label_names == ("0", "7", "10")
    np.testing.assert_array_equal(test.images[2], IMAGES[3])
    with pytest.raises(
        InputError, match=r"no IDX file has the images of the split 'dev'.* name the one to read, as in "
    ):
        read_examples(place, split="dev")


def test_the_endings_of_both_files_may_differ(place):
    (place / "train-labels-idx1-ubyte.gz").unlink()
    (place / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[:3]))
    assert read_examples(place).labels.tolist() == [1, 0, 1]


def test_labels_may_be_missing_only_where_that_is_said(place):
    (place / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match="the file of the labels, train-labels-idx1-ubyte, is not beside it"):
        read_examples(place)
    assert read_examples(place, labelled=None).labels.tolist() == [-1] * 3
    assert read_examples(place, labelled=False, split="test").labels.tolist() == [-1] * 3


def test_names_of_idx_files(place):
    assert is_idx("a/train-images.idx3-ubyte")
    assert not is_idx("train-labels-idx1-ubyte")
    assert find_idx(place, "test") == place / "t10k-images-idx3-ubyte.gz"
    (place / "empty").mkdir()
    assert find_idx(place / "empty", "train") is None


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(IMAGES)[:-1], idx(LABELS), "23 bytes where its header tells of 24"),
        (idx(IMAGES) + b"x", idx(LABELS), "25 bytes where"),
        (b"", idx(LABELS), "this is not an IDX file of bytes with 3 dimensions"),
        (idx(LABELS), idx(LABELS), "this is not an IDX file of bytes with 3 dimensions"),
        (idx(IMAGES), idx(IMAGES), "this is not an IDX file of bytes with 1 dimensions"),
        (idx(IMAGES), idx(LABELS[:3]), "4 images, but 3 labels"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), "there are no images in it"),
        (idx(IMAGES[:, :0]), idx(LABELS), "images of 2 × 0 pixels cannot be used"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"x", idx(LABELS), "1 bytes where"),
    ],
)
def test_wrong_files_are_named(tmp_path, images, labels, message):
    (tmp_path / "a-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "a-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(InputError, match=rf"idx\d-ubyte: {message}"):
        read_idx(tmp_path / "a-images-idx3-ubyte")


@given(data=st.data())
def test_damage_gives_examples_or_one_clear_line(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("idx")
    whole = bytearray(idx(IMAGES))
    whole[data.draw(st.integers(0, 15))] = data.draw(st.integers(0, 255))
    (place / "a-images-idx3-ubyte").write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    (place / "a-labels-idx1-ubyte").write_bytes(idx(LABELS))
    said = ""
    try:
        assert len(read_idx(place / "a-images-idx3-ubyte")) == 4
    except InputError as error:
        said = str(error)
    assert "\n" not in said
