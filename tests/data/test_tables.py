import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.data import read_table, write_table, write_tables
from calmix.data.tables import format_of
from calmix.errors import InputError

SUFFIXES = [form + packed for form in (".csv", ".tsv", ".jsonl", ".parquet") for packed in ("", ".gz", ".xz", ".zst")]
NASTY = ["001", "NA", "null", "", " a ", 'say "x"', "a,b;c\td", "line\nbreak\r\n", "é\u2028\u0085😀", "'", "\x00", "#"]
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(max_size=8))


def guarded(text):
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and text else text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", ("csv", "")),
        ("A.CSV.GZ", ("csv", ".gz")),
        ("a.b.tsv.xz", ("tsv", ".xz")),
        ("a.ndjson.zst", ("json", ".zst")),
        ("a.parquet", ("parquet", "")),
    ],
)
def test_the_name_says_format_and_compression(name, expected):
    assert format_of(name) == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_and_compression_gives_back_what_was_written(tmp_path, suffix):
    table = pa.table({"text": NASTY, 'odd "name", with comma': NASTY[::-1]})
    write_table(table, tmp_path / f"table{suffix}")
    assert read_table(tmp_path / f"table{suffix}").to_pydict() == table.to_pydict()
    assert os.listdir(tmp_path) == [f"table{suffix}"]


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6), suffix=st.sampled_from([".csv", ".tsv"]))
def test_any_text_survives_csv_and_tsv_but_for_the_formula_guard(tmp_path_factory, rows, suffix):
    path = Path(tmp_path_factory.getbasetemp()) / f"any{suffix}"
    one, two = zip(*rows, strict=True)
    write_table(pa.table({"one": one, "two": two}), path)
    assert read_table(path).to_pydict() == {"one": [*map(guarded, one)], "two": [*map(guarded, two)]}


@settings(max_examples=50)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=6),
    numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6),
    suffix=st.sampled_from([".jsonl", ".parquet"]),
)
def test_texts_numbers_and_lists_survive_jsonl_and_parquet(tmp_path_factory, texts, numbers, suffix):
    path = Path(tmp_path_factory.getbasetemp()) / f"any{suffix}"
    columns = {"text": texts, "number": numbers[: len(texts)], "lists": [texts] * len(texts)}
    write_table(pa.table(columns), path)
    assert read_table(path).to_pydict() == columns


def test_nested_and_categorical_cells_are_written_to_csv_readably(tmp_path):
    table = pa.table(
        {
            "list": [["é", "b"], None],
            "map": [{"x": 1}, {"x": 2}],
            "kind": pa.array(["u", "v"]).dictionary_encode(),
            "flag": [True, False],
            "number": [0.5, None],
        }
    )
    write_table(table, tmp_path / "a.csv")
    assert read_table(tmp_path / "a.csv").to_pylist() == [
        {"list": '["é", "b"]', "map": '{"x": 1}', "kind": "u", "flag": "true", "number": "0.5"},
        {"list": "", "map": '{"x": 2}', "kind": "v", "flag": "false", "number": ""},
    ]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write_table(pa.table({"text": ["old"]}), path)

    def fail(table, sink):
        sink.write(b'{"text": "ne')
        raise OSError("disk full")

    monkeypatch.setattr("calmix.data.tables.write_json_lines", fail)
    with pytest.raises(OSError, match="disk full"):
        write_table(pa.table({"text": ["new"]}), path)
    assert read_table(path).to_pydict() == {"text": ["old"]}
    assert os.listdir(tmp_path) == ["a.jsonl"]


def parquet(path, table=None):
    pq.write_table(table or pa.table({"text": ["a"] * 100}), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "the file is empty"),
        ("a.parquet", b"", "the file is empty"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "the file is empty"),
        ("a.csv", b"text,label\n", "there are no rows"),
        ("a.jsonl", b"\n\n", "there are no rows"),
        ("a.json", b"[]", "there are no rows"),
        ("a.xlsx", b"x", "is a spreadsheet; save the sheet as CSV"),
        (
            "a.csv",
            b"PK\x03\x04\x14\x00",
            "is a spreadsheet or an archive, whatever its name says; save the sheet as CSV",
        ),
        ("a.tsv", b"\xd0\xcf\x11\xe0\xa1\xb1", "is a spreadsheet or an archive, whatever its name says"),
        ("a.jsonl", b"PK\x03\x04\x14\x00", "is a spreadsheet or an archive, whatever its name says"),
        ("a.docx", b"x", "the file name does not say what the file is; let it end in .csv"),
        ("a.gz", b"x", "the file name does not say what the file is"),
        ("a", b"x", "the file name does not say what the file is"),
        ("a.csv.gz", b"text,label\na,1\n", "this is not valid .gz data; fetch or compress it again"),
        ("a.jsonl.xz", b'{"text": "a"}\n', "this is not valid .xz data"),
        ("a.csv.gz", gzip.compress(b"text,label\n" + os.urandom(1000).hex().encode())[:-9], "the file is cut short"),
        ("a.parquet", b"PAR1 but not really", "not a whole Parquet file"),
        ("a.csv", b"text,label\na,b,c\n", "line 2 has 3 fields, the header has 2"),
        ("a.csv", gzip.compress(b"text,label\na,1\n", mtime=0), "line 1 is not UTF-8"),
    ],
)
def test_a_bad_file_is_named_on_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_table(path)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_truncated_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(path)[:-20])
    with pytest.raises(InputError, match=r"a.parquet: not a whole Parquet file"):
        read_table(path)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    content = parquet(path, pa.table({"text": [str(number) for number in range(1000)]}))
    path.write_bytes(content[:20] + b"\xff" * 200 + content[220:])
    with pytest.raises(InputError, match=r"a.parquet: not a whole Parquet file"):
        read_table(path)


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    parquet(path, pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]))
    with pytest.raises(InputError, match="several columns are called 'x'"):
        read_table(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing.csv: no such file"):
        read_table(tmp_path / "nothing.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"folder.csv: this is a folder; give a file"):
        read_table(tmp_path / "folder.csv")


def test_nothing_is_written_under_a_name_without_a_format(tmp_path):
    with pytest.raises(InputError, match="does not say"):
        write_table(pa.table({"text": ["a"]}), tmp_path / "a.docx")
    assert os.listdir(tmp_path) == []


def test_a_copy_to_train_on_keeps_cells_that_look_like_formulas(tmp_path: Path) -> None:
    texts = ["@united my flight", "=1 pizza", "-great soup", "+3"]
    write_table(pa.table({"text": texts}), tmp_path / "copy.csv", guard=False)
    write_table(pa.table({"text": texts}), tmp_path / "shown.csv")
    assert read_table(tmp_path / "copy.csv")["text"].to_pylist() == texts
    assert read_table(tmp_path / "shown.csv")["text"].to_pylist() == ["'" + text for text in texts]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz", "t.jsonl", "t.parquet"])
def test_tables_written_one_after_the_other_are_one_table(tmp_path: Path, name: str) -> None:
    table = pa.table({"id": ["a", "b", "c", "d"], "p": [0.1, 0.2, 0.3, 0.4], "names": [["x"], [], ["y", "z"], ["x"]]})
    write_tables((table.slice(start, 3) for start in (0, 3)), tmp_path / name)
    write_table(table, tmp_path / f"whole-{name}")
    assert read_table(tmp_path / name).equals(read_table(tmp_path / f"whole-{name}"))


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_failure_between_two_tables_leaves_no_file(tmp_path: Path, name: str) -> None:
    def tables() -> Iterator[pa.Table]:
        yield pa.table({"id": ["a"]})
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        write_tables(tables(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_parquet_file_that_tells_a_value_once_and_means_it_often_is_refused(tmp_path, monkeypatch):
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 10_000]))
    for column in (repeated, repeated.cast(pa.string())):
        pa.parquet.write_table(pa.table({"text": column}), tmp_path / "bomb.parquet")
        assert read_table(tmp_path / "bomb.parquet").num_rows == 3000
        with monkeypatch.context() as patch:
            patch.setattr("calmix.data.files._BOMB_BYTES", 1 << 20)
            patch.setattr("calmix.data.files._BOMB_RATIO", 10)
            with pytest.raises(InputError, match=r"bomb\.parquet: expands to more than 1 MiB"):
                read_table(tmp_path / "bomb.parquet")


def test_text_in_a_parquet_file_that_is_not_utf8_is_refused(tmp_path):
    pa.parquet.write_table(pa.table({"text": ["aaaa", "bbbb"], "label": ["x", "y"]}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"aaaa", b"a\xa7\xa7a"))
    with pytest.raises(InputError, match="not a whole Parquet file"):
        read_table(tmp_path / "a.parquet")
