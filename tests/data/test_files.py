import gzip
import json
import lzma
import os

import pyarrow as pa
import pytest

from calmix.data import atomic_path, open_bytes, write_json, write_text
from calmix.data.files import compressed, is_left_over, naming
from calmix.errors import InputError

CONTENT = "a line\nand another é\n".encode() * 1000
COMPRESS = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_is_decompressed_as_its_suffix_says(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT))
    with open_bytes(path) as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_several_compressed_members_are_read_as_one_file(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT) + COMPRESS[suffix](b"more"))
    with open_bytes(path) as stream:
        assert stream.read() == CONTENT + b"more"


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_truncated_compressed_file_is_refused_and_not_read_in_part(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT)[:-4])
    with open_bytes(path) as stream, pytest.raises(InputError, match=rf"file\{suffix}: the file is cut short"):
        stream.read()


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_file_that_is_not_compressed_as_it_says_is_refused(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(CONTENT)
    with open_bytes(path) as stream, pytest.raises(InputError, match=rf"file\{suffix}: this is not valid \{suffix}"):
        stream.read()


def test_a_file_that_inflates_beyond_measure_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("calmix.data.files._BOMB_BYTES", 1000)
    monkeypatch.setattr("calmix.data.files._BOMB_RATIO", 10)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1_000_000)))
    with open_bytes(path) as stream, pytest.raises(InputError, match="expands to more than 10 times"):
        stream.read()


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing.gz: no such file"):
        open_bytes(tmp_path / "nothing.gz")
    with pytest.raises(InputError, match="this is a folder"):
        open_bytes(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_what_is_written_compressed_is_read_back(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    with compressed(path, suffix) as sink:
        sink.write(CONTENT)
    with open_bytes(path) as stream:
        assert stream.read() == CONTENT


def test_an_atomic_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "folder" / "result.csv"
    with atomic_path(path) as temporary:
        temporary.write_text("done")
        assert temporary.suffix == ".csv"
        assert temporary.parent == path.parent
        assert not path.exists()
    assert path.read_text() == "done"
    assert os.listdir(path.parent) == ["result.csv"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "result.csv"
    path.write_text("old")

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.csv"]


def test_what_a_killed_process_was_writing_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path):
    path = tmp_path / "result.csv"
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        (tmp_path / temporary.name.replace(str(os.getpid()), "4194305")).write_text("half")  # above any process's id
        living = tmp_path / temporary.name.replace(str(os.getpid()), "1")
        living.write_text("somebody is at it")
        assert is_left_over(living)
        assert not is_left_over(path)
    write_text(path, "newer")
    assert sorted(os.listdir(tmp_path)) == sorted(["result.csv", living.name])


def test_what_the_system_refuses_names_the_file_whichever_library_met_it(tmp_path):
    class SafetensorError(Exception):
        pass

    errors = [OSError(28, "Error writing bytes. Detail: ..."), SafetensorError("I/O error: full (os error 28)")]
    for error in errors:
        with pytest.raises(OSError, match="No space left on device") as caught, atomic_path(tmp_path / "result.csv"):
            raise error
        assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "result.csv"))
    for error in (OSError("odd"), OSError(2, "gone", "other.csv"), SafetensorError("odd"), InputError("(os error 28)")):
        with pytest.raises(type(error)) as caught, naming(tmp_path):
            raise error
        assert caught.value is error
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_to_is_named_and_not_the_temporary_file(tmp_path):
    path = tmp_path / "folder.html"
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=r"'\S+/folder\.html'$") as caught:
        write_text(path, "page")
    assert caught.value.filename == str(path)
    with pytest.raises(PermissionError) as caught, atomic_path(tmp_path / "page.html") as temporary:
        raise PermissionError(13, "Permission denied", str(temporary))
    assert caught.value.filename == str(tmp_path / "page.html")
    assert os.listdir(tmp_path) == ["folder.html"]


def test_an_atomic_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "ordinary").write_text("")
    write_text(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_text_and_json_are_written_as_utf8_without_changing_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "é\r\n\n")
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\r\n\n"
    write_json(tmp_path / "a.json", {"name": "é", "values": [1, 2.5]})
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"name": "é", "values": [1, 2.5]}


def test_json_that_no_other_program_could_read_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert os.listdir(tmp_path) == []
