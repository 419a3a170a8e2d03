"""A study's outcome as files."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from calmix.data import read_table
from calmix.study.tabulating import Column, Entry
from calmix.study.writing import column_title, latex, shown
from calmix.training.folder import read_run


def test_everything_is_written(finished: Any) -> None:
    names = {path.name for path in finished.order.out.iterdir()}
    assert {"study.md", "study.tex", "study.json", "study.parquet", "tables.csv", "tables.parquet", "runs"} <= names
    assert {"study-in.png", "study-in.svg", "study-out.png", "study-out.svg"} <= names


def test_the_page_says_what_its_figures_are_and_takes_no_column_from_a_title(finished: Any) -> None:
    page = (finished.order.out / "study.md").read_text()
    assert page.startswith("# Two \\| ways\n")
    assert "5 of 5 runs are finished. Mean ± standard deviation over 2 seeds; calibration errors over 10 bins." in page
    lines = page.split("## ECE (%)\n\n")[1].splitlines()
    assert lines[0] == "| method | tiny | tiny +TS | tiny → other | tiny → other +TS | rank | rank +TS |"
    assert lines[1] == "| --- | --- | --- | --- | --- | --- | --- |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| erm", "| tdmixup", "| pair"]
    assert all(line.count(" | ") == 6 for line in lines[2:5])


def test_the_json_holds_runs_rows_and_tables(finished: Any) -> None:
    found = json.loads((finished.order.out / "study.json").read_text())
    assert found["format"] == 1
    assert {run["status"] for run in found["runs"]} == {"finished"}
    guided = next(run for run in found["runs"] if run["recipe"] == "tdmixup")
    assert guided["needs"]["dynamics"] in {run["key"] for run in found["runs"]}
    assert len(found["rows"]) == 36
    assert len(found["tables"]) == len(read_table(finished.order.out / "tables.csv"))
    assert pq.read_table(finished.order.out / "tables.parquet").to_pylist() == found["tables"]
    assert found["study"]["baseline"] == "erm"
    # The runs' own words on what they were made with, not those of who makes the tables.
    (made,) = found["made_with"]
    assert made == {**read_run(finished.storage.folder(found["runs"][0]["key"]))["versions"], "runs": 5}


def test_the_parquet_has_the_rows(finished: Any) -> None:
    table = pq.read_table(finished.order.out / "study.parquet")
    rows = json.loads((finished.order.out / "study.json").read_text())["rows"]
    assert table.num_rows == len(rows)
    assert table["ece"].to_pylist() == [row["ece"] for row in rows]


@pytest.mark.parametrize(
    ("figure", "entry", "text"),
    [
        ("ece", Entry(0.0123, 0.001, 3), "1.23 ± 0.10"),
        ("nll", Entry(0.5, 0.25, 3), "0.500 ± 0.250"),
        ("accuracy", Entry(0.9, float("nan"), 1), "90.00"),
        ("nll", Entry(float("nan"), 0.1, 3), "not finite"),
        ("ece", None, "–"),
    ],
)
def test_figures_are_shown_as_a_reader_wants_them(figure: str, entry: Entry | None, text: str) -> None:
    assert shown(figure, entry) == text


def test_a_column_says_what_it_is_about() -> None:
    assert column_title(Column("snli", "ood-mnli", True, "ece")) == "snli → mnli +TS"
    assert column_title(Column("cola", "test", False, "mcc")) == "cola (MCC)"


def test_latex_is_escaped() -> None:
    from calmix.study.tabulating import Table

    column = Column("a_b", "test", False, "ece")
    table = Table("ece", "m", "", (column,), ("50% & more",), {("50% & more", column): Entry(0.1, 0.01, 2)}, {})
    text = latex([table])
    assert r"50\% \& more & 10.00 $\pm$ 1.00 \\" in text
    assert r"method & a\_b \\" in text
