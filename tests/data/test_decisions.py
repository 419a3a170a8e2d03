"""Decisions about samples: read, checked, and applied to the table they are about."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calmix.data import Examples, apply_decisions, read_decisions, read_examples, read_table
from calmix.data.decisions import decided_columns
from calmix.errors import InputError

HEAD = "id,label,decision,new_label\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    path.write_text("id,text,label,n\na,one,x,001\nb,two,y,002\nc,three,x,003\nd,four,=z,004\n-e,five,=z,005\n")
    return path


def applied(data: Path, decisions: str, **columns: Any) -> list[dict[str, Any]]:
    file = data.with_name("decisions.csv")
    file.write_bytes(decisions.encode())
    examples = read_examples(data, **columns)
    table = apply_decisions(read_table(data), examples, read_decisions(file, examples), label="label").table
    return list(table.to_pylist())


def test_rows_are_dropped_relabelled_and_otherwise_left_as_they_were(data: Path) -> None:
    before = read_table(data).to_pylist()
    found = applied(data, HEAD + "a,x,relabel,y\nb,y,drop,\nc,x,keep,\n")
    assert found == [{**before[0], "label": "y"}, *before[2:]]


def test_counts_tell_what_was_done(data: Path) -> None:
    file = data.with_name("decisions.csv")
    file.write_text(HEAD + "a,x,relabel,y\nb,y,DROP ,\nc,x,keep,\n")
    examples = read_examples(data)
    done = apply_decisions(read_table(data), examples, read_decisions(file, examples), label="label")
    assert (done.kept, done.relabelled, done.dropped, done.table.num_rows) == (1, 1, 1, 4)


@pytest.mark.parametrize("quote", ["'", ""])
def test_the_guard_against_formulas_is_taken_off(data: Path, quote: str) -> None:
    found = applied(data, HEAD + f"{quote}-e,{quote}=z,relabel,x\na,x,relabel,{quote}=z\n")
    assert [row["label"] for row in found] == ["=z", "y", "x", "=z", "x"]


def test_a_cell_that_could_mean_two_is_refused(data: Path) -> None:
    data.write_text("id,text,label\n-e,one,x\n'-e,two,y\n")
    with pytest.raises(InputError, match="could be one of two"):
        applied(data, HEAD + "'-e,x,drop,\n")
    assert len(applied(data, HEAD + "-e,x,drop,\n")) == 1


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ("id,what\na,drop\n", "has no column 'decision'"),
        (HEAD + "nobody,x,drop,\n", r"the id 'nobody' at row 2 \(the header is row 1\) is not in .*data\.csv"),
        (HEAD + "a,x,delete,\n", "the decision 'delete' at row 2 .* is none of keep, relabel, drop"),
        (HEAD + "a,y,drop,\n", "'a' is labelled 'y', but it is 'x': these decisions are about another state"),
        (HEAD + "a,gone,drop,\n", "is labelled 'gone', but it is 'x'"),
        (HEAD + "a,x,relabel,\n", "the new label '' at row 2 .* is none of the data's"),
        (HEAD + "a,x,relabel,yy\n", "is none of the data's; did you mean 'y'?"),
        (HEAD + "a,x,drop,\nb,y,keep,\na,x,keep,\n", "the id 'a' at row 4 .* was decided differently before"),
    ],
)
def test_what_is_wrong_is_named_with_its_row(data: Path, decisions: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        applied(data, decisions)


def test_the_same_decision_twice_is_one(data: Path) -> None:
    assert len(applied(data, HEAD + "a,x,drop,\na,x,drop,\n")) == 4


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_(), pa.dictionary(pa.int32(), pa.string())])
def test_labels_are_written_as_the_table_writes_them(tmp_path: Path, kind: pa.DataType) -> None:
    cells = ["p", "q", "p"] if pa.types.is_dictionary(kind) else [1, 0, 1]
    table = pa.table({"id": ["a", "b", "c"], "text": ["x", "y", "z"], "label": pa.array(cells).cast(kind)})
    path = tmp_path / "data.parquet"
    pa.parquet.write_table(table, path)
    examples = read_examples(path)
    other = examples.label_names[examples.labels[1]]
    (tmp_path / "d.csv").write_text(f"id,decision,new_label\na,relabel,{other}\n")
    found = apply_decisions(read_table(path), examples, read_decisions(tmp_path / "d.csv", examples), label="label")
    assert found.table.schema.field("label").type == table.schema.field("label").type
    assert found.table["label"].to_pylist() == [table["label"][1].as_py(), *table["label"].to_pylist()[1:]]


@pytest.mark.parametrize(("cells", "new"), [([0, 1], 2), (["0", "1"], "2"), (["A", "B"], "C")])
def test_choices_are_relabelled_by_their_number(tmp_path: Path, cells: list[Any], new: Any) -> None:
    table = pa.table({"id": ["a", "b"], "text": ["q", "r"], "choices": [["x", "y", "z"], ["x", "y"]], "label": cells})
    examples = Examples(table.drop_columns(["label"]), np.array([0, 1]), ())
    (tmp_path / "d.csv").write_text("id,label,decision,new_label\na,0,relabel,2\n")
    decisions = read_decisions(tmp_path / "d.csv", examples)
    assert apply_decisions(table, examples, decisions, label="label").table["label"].to_pylist() == [new, cells[1]]
    (tmp_path / "d.csv").write_text("id,label,decision,new_label\nb,1,relabel,2\n")
    with pytest.raises(InputError, match="'b' has no choice 2"):
        apply_decisions(table, examples, read_decisions(tmp_path / "d.csv", examples), label="label")


@pytest.mark.parametrize(
    ("cell", "columns"),
    [
        ('{""text"": ""body"", ""label"": ""a, b""}', {"text": "body", "label": "a, b"}),
        ('{""text"": 3, ""label"": ""kind""}', {"label": "kind"}),
        ("[1]", {}),
        ("{", {}),
        ("", {}),
    ],
)
def test_decisions_may_say_which_columns_were_named(tmp_path: Path, cell: str, columns: dict[str, str]) -> None:
    file = tmp_path / "decisions.csv"
    file.write_text(f'id,decision,columns\na,drop,"{cell}"\n')
    assert decided_columns(file) == columns
    file.write_text("id,decision\na,drop\n")
    assert decided_columns(file) == {}
