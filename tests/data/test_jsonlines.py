import json

import pyarrow as pa
import pytest

from calmix.data.jsonlines import as_array, read_json, write_json_lines
from calmix.errors import InputError


def read(tmp_path, content):
    path = tmp_path / "file.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_json(path)


def test_each_line_is_a_row(tmp_path):
    table = read(tmp_path, '\ufeff{"text": "a\\n", "label": 1}\n\n{"text": "b", "label": 2}\r\n')
    assert table.to_pydict() == {"text": ["a\n", "b"], "label": [1, 2]}


def test_an_array_of_objects_is_read_too(tmp_path):
    table = read(tmp_path, '\n[\n {"text": "é"},\n {"text": "b"}\n]\n')
    assert table.to_pydict() == {"text": ["é", "b"]}


def test_strings_stay_strings_even_when_they_look_like_dates(tmp_path):
    assert read(tmp_path, '{"text": "2020-01-01"}').to_pydict() == {"text": ["2020-01-01"]}


def test_unicode_line_separators_do_not_end_a_line(tmp_path):
    assert read(tmp_path, '{"text": "a\u2028b\u0085c"}').to_pydict() == {"text": ["a\u2028b\u0085c"]}


def test_a_key_that_some_rows_lack_is_empty_there(tmp_path):
    table = read(tmp_path, '{"text": "a"}\n{"text": "b", "note": "n"}\n')
    assert table.to_pydict() == {"text": ["a", "b"], "note": [None, "n"]}


def test_lists_and_mappings_stay_what_they_are(tmp_path):
    row = {"choices": ["a", "b"], "votes": {"x": 1, "y": 2}}
    assert read(tmp_path, json.dumps(row)).to_pylist() == [row]


@pytest.mark.parametrize(
    ("values", "strings"),
    [
        ([1, "a", None], ["1", "a", None]),
        ([True, 1], ["true", "1"]),
        ([2**70], [str(2**70)]),
        ([["a"], "b"], ['["a"]', "b"]),
    ],
)
def test_a_column_of_several_types_becomes_one_of_strings(values, strings):
    assert as_array(values).to_pylist() == strings


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_kept(tmp_path):
    table = read(tmp_path, r'{"text": "a\ud83d b"}' + "\n" + r'{"text": "\ud83d\ude00"}')
    assert table.to_pydict() == {"text": ["a\ufffd b", "\U0001f600"]}
    assert as_array([["\ud800"], ["x"]]).to_pylist() == [["\ufffd"], ["x"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": b}\n', "line 2 is not valid JSON (Expecting value, column 10)"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2 is not UTF-8"),
        (b'{"text": "a"}\n["b"]\n', "line 2 is not a JSON object"),
        (b'{"text": "a"}\n3\n', "line 2 is not a JSON object"),
        (b'{"text": "a"}\n{"text": ' + b"[" * 100_000, "line 2 is not valid JSON"),
        (b'{"text": "a"}\n{"n": ' + b"9" * 5000 + b"}", "line 2 is not valid JSON"),
        (b'[{"text": "a"},\n {"text": b}]', "not valid JSON (line 2)"),
        (b'[{"text": "a"}, 3]', "item 2 is not a JSON object"),
        (b'[{"text": "a"},\n"\xff"]', "not UTF-8"),
    ],
)
def test_a_defect_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(InputError) as error:
        read(tmp_path, content)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "file.jsonl"))
    assert "\n" not in str(error.value)


def test_numbers_that_json_does_not_know_are_written_as_null(tmp_path):
    with (tmp_path / "a.jsonl").open("wb") as sink:
        write_json_lines(pa.table({"loss": [1.5, float("nan"), float("inf")], "text": ["é", "b", "c"]}), sink)
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[0] == '{"loss": 1.5, "text": "é"}'
    assert [json.loads(line)["loss"] for line in lines] == [1.5, None, None]
