"""Copies of a table have everything it had; where there was none, labels too."""

from pathlib import Path

import pytest
from PIL import Image

from calmix.data import Examples, read_examples, read_table, write_table
from calmix.data.originals import original_table, write_copy

COLUMNS = {"text": None, "text_b": None, "choices": None, "label": None, "id": None}


def test_a_file_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("Body,Queue,text\nx,b,1\ny,a,2\n")
    usual = {"text": "body", "label": "queue"}
    examples = read_examples(file, usual=usual)
    table, label = original_table(str(file), examples, COLUMNS, usual=usual)
    assert label == "Queue"
    assert table.to_pydict() == {"Body": ["x", "y"], "Queue": ["b", "a"], "text": ["1", "2"]}
    assert original_table(str(file), examples, {**COLUMNS, "text": "text", "label": "Queue"})[1] == "Queue"


def test_a_copy_of_a_file_has_its_line_ends_and_its_cells(tmp_path: Path) -> None:
    content = b"text,label\r\n=1,a\r\n-x,b\r\n"
    (tmp_path / "a.csv").write_bytes(content)
    table = read_table(tmp_path / "a.csv")
    write_copy(table, tmp_path / "b.csv", of=str(tmp_path / "a.csv"))
    assert (tmp_path / "b.csv").read_bytes() == content
    write_table(table, tmp_path / "a.parquet")
    write_copy(table, tmp_path / "c.csv", of=str(tmp_path / "a.parquet"))
    assert (tmp_path / "c.csv").read_bytes() == content.replace(b"\r\n", b"\n")


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbftext,label\r\na,x\r\nb;c,y\r\n",
        b"text;label\na,b;x\nc;y\n",
        b'\xef\xbb\xbftext;label\r\n"a;b";x\r\n"c\nd";y\r\n',
    ],
)
def test_a_copy_of_a_file_has_its_byte_order_mark_and_its_semicolons(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    table = read_table(tmp_path / "a.csv")
    write_copy(table, tmp_path / "b.csv", of=str(tmp_path / "a.csv"))
    assert (tmp_path / "b.csv").read_bytes() == content


def test_a_copy_of_another_format_is_separated_as_that_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text;label\r\na;x\r\n")
    table = read_table(tmp_path / "a.csv")
    write_copy(table, tmp_path / "b.tsv", of=str(tmp_path / "a.csv"))
    assert (tmp_path / "b.tsv").read_bytes() == b"text\tlabel\r\na\tx\r\n"
    write_copy(table, tmp_path / "c.csv", of=str(tmp_path / "b.tsv"))
    assert (tmp_path / "c.csv").read_bytes() == b"text,label\r\na,x\r\n"
    write_copy(table, tmp_path / "d.csv", of="org/name")
    assert (tmp_path / "d.csv").read_bytes() == b"text,label\na,x\n"


def test_images_in_files_become_a_table_to_train_on(tmp_path: Path) -> None:
    for name, colour in (("cat", 10), ("dog", 200)):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), (colour, 0, 0)).save(tmp_path / "images" / name / "1.png")
    folder = str(tmp_path / "images")
    examples = read_examples(folder)
    table, label = original_table(folder, examples, COLUMNS)
    assert table[label].to_pylist() == ["cat", "dog"]
    write_table(table, tmp_path / "images.parquet")
    again = read_examples(tmp_path / "images.parquet")
    assert again.digest() == examples.digest()


def test_a_data_set_of_the_hub_gets_a_column_of_labels() -> None:
    examples = Examples.from_texts(["a", "b"], ["yes", "no"])
    table, label = original_table("org/name", examples, COLUMNS)
    assert label == "label"
    assert table["label"].to_pylist() == ["yes", "no"]
    assert table["text"].to_pylist() == ["a", "b"]
