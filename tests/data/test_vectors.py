"""Word vectors from text files, compressed or not, and what is wrong with some."""

import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from calmix.data.vectors import read_vectors, vectors_file
from calmix.errors import InputError

TEXT = "the 0.5 -1 2e-3\n. . . 1 2 3\ncat 4 5 6\nthe 9 9 9\n"


def packed(folder: Path, kind: str) -> Path:
    path = folder / f"glove.txt{kind}"
    if kind == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner/glove.3d.txt", TEXT)
    else:
        path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[kind](TEXT.encode()))
    return path


@pytest.mark.parametrize("kind", ["", ".gz", ".xz", ".zip"])
def test_the_words_asked_for_are_found_the_first_of_each(tmp_path: Path, kind: str) -> None:
    found = read_vectors(packed(tmp_path, kind), {"the", "dog", ". . ."})
    assert set(found) == {"the", ". . ."}
    np.testing.assert_allclose(found["the"], [0.5, -1, 0.002])
    np.testing.assert_allclose(found[". . ."], [1, 2, 3])
    assert found["the"].dtype == np.float32


def test_of_several_files_in_a_zip_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "cat 1 2\n")
        archive.writestr("deep/b.txt", "cat 3 4 5\n")
    assert len(read_vectors(path / "deep" / "b.txt", ["cat"])["cat"]) == 3
    assert vectors_file(path / "deep" / "b.txt") == path
    for wrong, words in ((path, "several files"), (path / "c.txt", "no file 'c.txt'")):
        with pytest.raises(InputError, match=words):
            read_vectors(wrong, ["cat"])


def test_a_header_as_word2vec_writes_it_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("2 3\ncat 1 2 3\ndog 4 5 6\n\n")
    assert read_vectors(tmp_path / "v.txt", ["dog"])["dog"].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cat 1 2 3\ndog 1 2\n", "line 2 has 2 numbers, the first 3"),
        (b"cat 1 2 x\n", "line 1 holds something that is not a number"),
        (b"dog 1 2 3\ncat 1 nan 3\n", "line 2 holds a number that is not finite"),
        (b"", "holds no word vectors"),
        (b"cat\n", "line 1 is no word with its numbers"),
        (b"\0\1\2 \3 \4\n", "line 1 is no word with its numbers"),
        (b"cat " + b"1 " * 100_000 + b"\n", "line 1 is longer than"),
        (b"cat" + b" 1" * 5000 + b"\n", "line 1 is no word with its numbers"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(InputError, match=words) as error:
        read_vectors(tmp_path / "v.txt", ["cat"])
    assert "\n" not in str(error.value)


def test_damaged_archives_missing_files_and_bombs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "v.zip").write_bytes(b"PK no zip")
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_vectors(tmp_path / "v.zip", ["cat"])
    for missing in (tmp_path / "none.txt", tmp_path / "none.zip" / "a.txt"):
        with pytest.raises(InputError, match="no such file of word vectors"):
            read_vectors(missing, ["cat"])
    (tmp_path / "v.txt").write_text("cat 1\n")
    with pytest.raises(InputError, match="no such file of word vectors"):
        read_vectors(tmp_path / "v.txt" / "inner.txt", ["cat"])
