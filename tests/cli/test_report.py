"""`calmix report`."""

import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(trained: Path, place: Path) -> Path:
    """A copy of a finished run, in the folder the command runs in."""
    shutil.copytree(trained, place / "run")
    return Path("run")


def test_a_run_gets_its_page(calmix: Any, run: Path) -> None:
    ended = calmix("report", run)
    assert (ended.code, ended.out, ended.err) == (0, "page: run/report.html\n", "")
    assert "claims" in (run / "report.html").read_text(encoding="utf-8")


def test_the_page_goes_where_one_says(calmix: Any, run: Path, place: Path) -> None:
    assert calmix("report", run, "--out", "pages/mine.html").out == "page: pages/mine.html\n"
    assert (place / "pages" / "mine.html").is_file()
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["run", "--out", "page.pdf"], ["run/model"]])
def test_what_is_wrong_ends_in_one_line_and_leaves_nothing(
    calmix: Any, run: Path, place: Path, tree: Any, words: list[str]
) -> None:
    before = tree(place)
    ended = calmix("report", *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert tree(place) == before


def test_a_place_that_cannot_be_written_to_is_named(calmix: Any, run: Path, place: Path) -> None:
    (place / "page.html").mkdir()
    ended = calmix("report", run, "--out", "page.html")
    assert (ended.code, ended.out, ended.err) == (1, "", "calmix: page.html: Is a directory\n")
    assert sorted(p.name for p in place.iterdir()) == ["page.html", "run"]


def test_training_leaves_a_page_unless_told_not_to(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ["train", files["train"], "--dev", files["dev"], "--model", checkpoint("bert"), "--epochs", 1]
    ended = calmix(*words, "--out", "run")
    assert "page: run/report.html\n" in ended.out
    assert (place / "run" / "report.html").is_file()
    assert "page:" not in calmix(*words, "--out", "bare", "--no-report").out
    assert not (place / "bare" / "report.html").exists()


def test_a_map_leaves_a_page_unless_told_not_to(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ["map", files["train"], "--model", checkpoint("bert"), "--epochs", 1]
    assert "page, to read and mark samples in: map/report.html\n" in calmix(*words, "--out", "map").out
    assert (place / "map" / "report.html").is_file()
    assert calmix(*words, "--out", "bare", "--no-report").code == 0
    assert not (place / "bare" / "report.html").exists()


def test_several_runs_are_compared(calmix: Any, run: Path, place: Path) -> None:
    shutil.copytree(run, "other")
    ended = calmix("report", run, "other")
    assert (ended.code, ended.out, ended.err) == (0, "page: comparison.html\n", "")
    assert "2 runs side by side" in (place / "comparison.html").read_text(encoding="utf-8")
    ended = calmix("report", run, run)
    assert (ended.code, ended.err) == (2, "calmix: run: is given twice\n")


def test_a_file_under_another_name_is_the_same_rows(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ["train", files["train"], "--dev", files["dev"], "--model", checkpoint("bert"), "--epochs", 1]
    assert calmix(*words, "--test", files["test"], "--out", "run").code == 0
    shutil.copy(files["test"], place / "october.csv")
    assert calmix("evaluate", "run", "october.csv", "--out", "judged").code == 0
    assert calmix("report", "run", "judged", "--out", "both.html").code == 0
    page = (place / "both.html").read_text(encoding="utf-8")
    (table,) = (part for part in page.split("<h3>") if 'data-set="test"' in part)
    assert "not judged on" not in table
    assert table.count('class="difference') > 0
    assert 'data-set="october"' not in page
    ended = calmix("plot", "run", "judged", "--what", "reliability", "--data", "test", "--out", "fig.svg")
    assert (ended.code, ended.err) == (0, "")
    labelled = (place / "fig.svg").read_text()
    assert "<!-- run" in labelled
    assert "<!-- judged" in labelled
