import csv
import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data.delimited import Layout, _careful, layout_of, read_delimited, write_delimited
from calmix.errors import InputError


def read(tmp_path, content, delimiter=","):
    path = tmp_path / "file.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_delimited(path, delimiter).to_pydict()


@pytest.mark.parametrize(
    "cell", ["001", "NA", "null", "nan", "None", "", " ", " x ", "1.0", "true", "2020-01-01", "x\x00y", 'a"b"c', "1e5"]
)
def test_cells_are_strings_as_they_stand(tmp_path, cell):
    assert read(tmp_path, f"text,label\n{cell},1\n") == {"text": [cell], "label": ["1"]}


def test_quoted_cells_hold_delimiters_quotes_and_line_breaks(tmp_path):
    table = read(tmp_path, 'text,label\n"a, ""b""\r\nc\n\nd",1\ne,2\n')
    assert table == {"text": ['a, "b"\r\nc\n\nd', "e"], "label": ["1", "2"]}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("quoted", ["a", '"a\nb"'])
def test_every_kind_of_line_end_works(tmp_path, end, quoted):
    table = read(tmp_path, end.join(["text,label", f"{quoted},1", "c,2"]))
    assert table == {"text": [quoted.strip('"'), "c"], "label": ["1", "2"]}


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert read(tmp_path, "\ufefftext\na\n") == {"text": ["a"]}
    assert read(tmp_path, '\ufefftext\n"a\nb"\n') == {"text": ["a\nb"]}


def test_semicolons_separate_where_the_header_has_them_and_no_commas(tmp_path):
    content = '\ufeffText;Label\r\n"a; ""b""";1,5\r\nc, d;2\r\n'
    assert read(tmp_path, content) == {"Text": ['a; "b"', "c, d"], "Label": ["1,5", "2"]}
    assert read(tmp_path, "text,a;b\nc;d,1\n") == {"text": ["c;d"], "a;b": ["1"]}
    assert read(tmp_path, '"text;label"\na\n') == {"text;label": ["a"]}
    assert read(tmp_path, '"text";"a,b"\n"c";"1"\n') == {"text": ["c"], "a,b": ["1"]}


def test_blank_lines_are_no_rows(tmp_path):
    assert read(tmp_path, "text,label\n\na,1\n\n\nb,2\n\n") == {"text": ["a", "b"], "label": ["1", "2"]}


def test_a_row_longer_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("calmix.data.delimited._BLOCK", 1000)
    assert read(tmp_path, f"text,label\na,1\n{'x' * 200_000},2\n")["text"] == ["a", "x" * 200_000]


def test_the_field_limit_of_the_csv_module_is_left_as_it_was(tmp_path):
    before = csv.field_size_limit()
    read(tmp_path, 'text\n"a\nb"\n')
    assert csv.field_size_limit() == before


def test_tsv_files_that_know_no_quoting_are_read_line_by_line(tmp_path):
    content = 'text\tlabel\n"Well\t1\nhe said "no" twice\t0\n5" wide\t1\n'
    assert read(tmp_path, content, "\t") == {
        "text": ['"Well', 'he said "no" twice', '5" wide'],
        "label": ["1", "0", "1"],
    }


def test_tsv_files_with_quoting_are_read_with_it(tmp_path):
    assert read(tmp_path, 'text\tlabel\n"a\tb\n""c"""\t1\n', "\t") == {"text": ['a\tb\n"c"'], "label": ["1"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"text,label\na,1\nb\n", "line 3 has 1 fields, the header has 2; put quotes around cells"),
        (b"text,label\na,1\nb,c,2\n", "line 3 has 3 fields, the header has 2"),
        (b'text,label\n"a\nb",1\n\nb,c,2\n', "line 5 has 3 fields, the header has 2"),
        (b"text,label\na,1\n\xff,2\n", "line 3 is not UTF-8; save the file as UTF-8"),
        (b"\xff\xfet\x00e\x00", "line 1 is not UTF-8"),
        (b"text,text\na,1\n", "several columns are called 'text'; rename them"),
        (b'text,label\na,1\nb,"c\nd,2\n', "the quote that opens on line 3 is never closed"),
        (b'text,label\n"a\nb,1\nc "d" e,2\n', "line 4 has text after a closing quote"),
        (
            b"text;label\na;1\nb;c;1\n",
            "line 3 has 3 fields, the header has 2; put quotes around cells that contain semi",
        ),
        (b"text;text\na;1\n", "several columns are called 'text'"),
        (b"text\tlabel\na\t1\n", r"is separated by '\t'"),
        (b"text|label\na, b|1\n", "the header 'text|label' is separated by '|'; save it with commas (.csv)"),
        (b'"text"|"label"\n"a"|1\n', "is separated by '|'; save it with commas (.csv)"),
        (
            b"Tickets of May,,\nid,text,label\n1,a,x\n",
            "the first line, 'Tickets of May', names 1 of 3 columns: if it is a title, remove what is above the names",
        ),
        (
            b"Tickets of May\ntext,label\na,x\n",
            "line 2 has 2 fields, the header has 1; put quotes around cells that contain commas, or remove the first "
            "line if it is a title",
        ),
        (b",,text\na,b,c\n", "several columns are called ''; rename them"),
    ],
)
def test_a_defect_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(InputError) as error:
        read(tmp_path, content)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "file.csv"))
    assert "\n" not in str(error.value)


CELLS = st.text(alphabet=st.sampled_from("ab\",;\n\r\t '=é\x00"), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_the_fast_reader_agrees_with_the_careful_one(tmp_path_factory, rows):
    path = Path(tmp_path_factory.getbasetemp()) / "agree.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("one", "two"), *rows])
    assert read_delimited(path, ",") == _careful(path, ",")
    assert read_delimited(path, ",").to_pylist() == [{"one": one, "two": two} for one, two in rows]


def test_a_bar_in_the_name_of_a_single_column_is_part_of_it(tmp_path):
    assert read(tmp_path, b'"text|note"\n"a|b"\n') == {"text|note": ["a|b"]}
    assert list(read(tmp_path, b"text|note,label\na,b\n")) == ["text|note", "label"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_string_that_a_spreadsheet_would_run_is_disarmed(start):
    sink = io.BytesIO()
    write_delimited(pa.table({"text": [f"{start}1+1", f"a{start}", f"a\n{start}"], "n": [-1, 2, 3]}), sink, Layout(","))
    rows = list(csv.reader(io.StringIO(sink.getvalue().decode(), newline="")))
    assert rows[1:] == [[f"'{start}1+1", "-1"], [f"a{start}", "2"], [f"a\n{start}", "3"]]


def test_a_single_column_with_empty_cells_keeps_all_its_rows(tmp_path):
    for column in (["", None, "a"], [None, 1, None]):
        with (tmp_path / "file.csv").open("wb") as sink:
            write_delimited(pa.table({"x": column}), sink, Layout(","))
        assert read_delimited(tmp_path / "file.csv", ",").num_rows == 3


def test_cells_are_quoted_where_they_must_be_and_nowhere_else():
    sink = io.BytesIO()
    table = pa.table(
        {
            "id #": ["1", None],
            "a,b": ["plain; 'text'\t", 'say "no", twice\nat least'],
            "n": [0.5, None],
            "b": [True, False],
        }
    )
    write_delimited(table, sink, Layout(","))
    assert sink.getvalue().decode() == (
        'id #,"a,b",n,b\n1,plain; \'text\'\t,0.5,true\n,"say ""no"", twice\nat least",,false\n'
    )


def test_a_copy_of_a_table_is_the_same_file(tmp_path):
    content = 'id,text,label\n001,"a, ""b""",x\n2,=1+1,\n3, c ,"two\nlines"\n'
    (tmp_path / "a.csv").write_text(content)
    with (tmp_path / "b.csv").open("wb") as sink:
        write_delimited(read_delimited(tmp_path / "a.csv", ","), sink, Layout(","), guard=False)
    assert (tmp_path / "b.csv").read_text() == content


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["text", "a\nb", 'a "\r\n" b'])
@pytest.mark.parametrize("mark", [False, True])
def test_a_copy_can_have_the_line_ends_of_its_table(tmp_path, end, name, mark):
    table = pa.table({"id": ["1", "2"], name: ["one", "two\nlines"]})
    with (tmp_path / "a.csv").open("wb") as sink:
        write_delimited(table, sink, Layout(",", end, mark))
    assert layout_of(tmp_path / "a.csv", ",") == Layout(",", end, mark)
    assert read_delimited(tmp_path / "a.csv", ",").to_pydict() == table.to_pydict()
    assert (tmp_path / "a.csv").read_bytes().endswith(f'{end}1,one{end}2,"two\nlines"{end}'.encode())


def test_a_header_without_an_end_has_the_usual_one(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text")
    assert layout_of(tmp_path / "a.csv", ",") == Layout(",", "\n")


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("names", [["\ufefftext", "label"], ["a;b", "c"], ["c", "a;b"], ["text"], ["c", "a,b", 'd"']])
def test_names_and_cells_come_back_whatever_they_hold(tmp_path, names, delimiter, mark):
    cells = ["", "a;b,c\td", '"', "\ufeff", "\r", " x "]
    table = pa.table({name: pa.array(cells) for name in names})
    with (tmp_path / "file.csv").open("wb") as sink:
        write_delimited(table, sink, Layout(delimiter, mark=mark), guard=False)
    found = read_delimited(tmp_path / "file.csv", "," if delimiter == ";" else delimiter)
    assert found.to_pydict() == table.to_pydict()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in Linux's /proc")
def test_reading_leaves_no_pool_of_threads_that_a_process_could_die_of_at_its_end(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "a,1\n" * 100)
    code = (
        "import os, pathlib, sys; from calmix.data.delimited import read_delimited as read;"
        "count = lambda: len(os.listdir('/proc/self/task')); before = count();"
        "read(pathlib.Path(sys.argv[1]), ','); print(count() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.csv")], capture_output=True, check=True)
    assert int(done.stdout) <= 1  # the one that reads
