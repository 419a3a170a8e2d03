"""A paper's figures beside ours."""

import math
from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.study.conducting import Order, conduct, outcome, prepare
from calmix.study.papers import Paper, parse_paper, read_paper

HEAD = "table,model,task,data,method,figure,scaled,value,spread\n"
STUDIES = Path(__file__).parents[2] / "studies"


def test_figures_are_read_for_the_tables_and_the_model_that_are_meant(tmp_path: Path) -> None:
    rows = "1,A,t,test,erm,ece,true,2.5,0.5\n2,A,t,test,erm,nll,false,0.61,\n"
    rows += "3,A,t,test,x,ece,false,1,1\n1,B,t,test,y,ece,false,1,1\n"
    (tmp_path / "p.csv").write_text(HEAD + rows)
    found = read_paper(Paper("p.csv", ("1", "2"), "A"), tmp_path).values
    assert list(found) == [("erm", "t", "test", "ece", True), ("erm", "t", "test", "nll", False)]
    assert found["erm", "t", "test", "ece", True] == (0.025, 0.005)
    value, spread = found["erm", "t", "test", "nll", False]
    assert value == 0.61
    assert math.isnan(spread)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (3, "is a table"),
        ({"fiel": "x"}, "did you mean 'file'?"),
        ({"file": "x", "model": "m"}, "says nothing about 'tables'"),
        ({"file": "x", "model": "m", "tables": [1]}, "must be a list of names"),
    ],
)
def test_what_is_wrong_is_said(values: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_paper(values, "here")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "file", "words"),
    [
        (HEAD + "1,A,t,test,erm,ece,true,much,\n", "p.csv", "is no number"),
        (HEAD + "1,B,t,test,erm,ece,true,1,\n", "p.csv", "has no figures of A in table 1"),
        ("a,b\n1,2\n", "p.csv", "has no column 'table'"),
        (HEAD, "../p.csv", "stay inside it"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path, text: str, file: str, words: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError) as refused:
        read_paper(Paper(file, ("1",), "A"), tmp_path)
    assert words in str(refused.value)


def test_they_stand_beside_ours_on_the_page(written: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(HEAD + "1,A,tiny,test,erm,ece,true,2.50,0.5\n1,A,tiny,test,other,ece,true,9.99,\n")
    head = 'seeds = 1\nfigures = ["ece"]\npaper = { file = "p.csv", tables = ["1"], model = "A" }'
    prepared = prepare(Order(written('[[method]]\nrecipe = "erm"\n', head=head), tmp_path / "out", data=data))
    conduct(prepared)
    outcome(prepared)
    page = (tmp_path / "out" / "study.md").read_text()
    beside = page.split("Beside the paper's A, in brackets:\n\n")[1].splitlines()
    assert beside[0] == "| method | tiny +TS |"
    assert beside[2].startswith("| erm | ")
    assert beside[2].endswith(" (2.50 ± 0.50) |")
    assert beside[3] == "| other | – (9.99) |"


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_study_that_is_shipped_can_be_read_and_its_rows_are_the_papers(path: Path) -> None:
    from calmix.study.asking import read_study

    study = read_study(path)
    # Five, as deep ensembles are usually judged; the one of the shipped corpus is made on a laptop.
    assert {method.members for method in study.methods if method.of} == {3 if path.stem == "desk" else 5}
    if study.paper is not None:
        ours = {(method.name, task.name) for method in study.methods for task in study.tasks}
        theirs = {(key[0], key[1]) for key in study.paper.values}
        # What is not ours is what we cannot make: see the studies' notes.
        missing = {"Back-translation"}
        assert {name for name, _ in theirs - ours} <= missing
