"""Several runs side by side."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.report import read_run, write_comparison
from calmix.report.comparison import compare, comparison_page, run_names
from calmix.training import differences


def cells(html: str, name: str, run: int) -> str:
    found = re.search(rf'<tr data-set="{name}" data-run="{run}">(.*?)</tr>', html, flags=re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def pair(make_run: Any) -> list[Path]:
    return [make_run("plain"), make_run("scaled", temperature=2.5, seed=1)]


def test_each_runs_figures_are_those_of_its_metrics(pair: list[Path], tmp_path: Path) -> None:
    page = write_comparison(pair, tmp_path / "comparison.html")
    html = page.read_text(encoding="utf-8")
    for run, folder in enumerate(pair):
        metrics = json.loads((folder / "metrics.json").read_text())
        for name, stages in metrics["splits"].items():
            row = cells(html, name, run)
            assert f"{100 * stages['after']['ece']:.1f} %" in row
            assert f"{100 * stages['before']['ece']:.1f} %" in row
            assert f"{stages['after']['nll']:.3f}" in row


def test_differences_are_paired_and_say_which_way_is_better(pair: list[Path]) -> None:
    first, second = (read_run(folder).judged[0] for folder in pair)
    found = compare(second, first, 10)
    assert found is not None
    low, high = differences(second.probs["after"], first.probs["after"], first.labels, bins=10)["ece"]
    assert (found["ece"].low, found["ece"].high) == (low, high)
    assert found["ece"].verdict == ("worse" if low > 0 else "better" if high < 0 else "unclear")
    assert found["accuracy"].verdict == "unclear"  # a temperature changes no prediction
    other = compare(first, second, 10)
    assert other is not None
    assert {found["ece"].verdict, other["ece"].verdict} in ({"better", "worse"}, {"unclear"})


def test_other_rows_are_not_compared_and_that_is_said(make_run: Any) -> None:
    runs = [read_run(make_run("a")), read_run(make_run("b", rows=300))]
    assert compare(runs[1].judged[0], runs[0].judged[0], 10) is None
    assert comparison_page(runs).count("These runs were not judged on the same rows") == 3
    page = comparison_page([*runs, read_run(make_run("c"))])
    assert page.count("Not all of these runs were judged on the same rows") == 3


def test_hashes_are_told_apart_by_their_beginnings(make_run: Any) -> None:
    runs = [read_run(make_run(name)) for name in ("a", "b")]
    told = [
        replace(run, settings={"config": {"data": {"train": hash}, "teacher": [hash]}})
        for run, hash in zip(runs, ("0a" * 32, "1b" * 32), strict=True)
    ]
    page = comparison_page(told)
    assert ">0a0a0a0a…<" in page
    assert ">1b1b1b1b…<" in page
    assert "0a" * 5 not in page


def test_a_set_that_one_run_lacks_is_said(make_run: Any) -> None:
    html = comparison_page([read_run(make_run("a")), read_run(make_run("b", sets=("dev", "test")))])
    assert "not judged on this" in cells(html, "ood-far", 1)


def test_only_options_that_differ_are_listed(pair: list[Path]) -> None:
    html = comparison_page([read_run(folder) for folder in pair])
    options = html.split('id="options"')[1]
    assert ">seed<" in options
    assert ">lr<" not in options


def test_runs_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    assert run_names([Path("x/erm"), Path("y/mixup")]) == ["erm", "mixup"]
    assert run_names([Path("x/run"), Path("y/run")]) == ["x/run", "y/run"]
    with pytest.raises(InputError, match="given twice"):
        run_names([tmp_path, tmp_path])


def test_what_cannot_be_compared_is_refused(make_run: Any) -> None:
    run, bare = read_run(make_run("a")), read_run(make_run("b", sets=()))
    with pytest.raises(InputError, match="nothing to compare"):
        comparison_page([run, bare])
    with pytest.raises(InputError, match="at most 8"):
        comparison_page([run] * 9)


def test_hostile_names_are_text(make_run: Any) -> None:
    classes = ("<script>alert(1)</script>", "b")
    html = comparison_page([read_run(make_run("<b>1", classes=classes)), read_run(make_run("2", classes=classes))])
    assert "<b>1" not in html
    assert html.count("<script") == 2


@pytest.mark.parametrize("width", [1280, 390])
def test_its_diagrams_follow_their_choices(open_page: Any, pair: list[Path], tmp_path: Path, width: int) -> None:
    page = open_page(write_comparison(pair, tmp_path / "c.html"), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lines = page.locator("#comparison figure").first.locator("path.line")
    assert lines.count() == 2
    reliability = lines.first.get_attribute("d")
    page.select_option("#stage", "before")
    assert lines.first.get_attribute("d") != reliability
    page.select_option("#diagram", "risk")
    assert lines.count() == 2
    assert page.locator("#stage").is_hidden()
    page.select_option("#diagram", "scatter")
    assert page.locator("#comparison figure").first.locator(".dot").count() == 2
    assert page.locator("#comparison figure").count() == 2
    page.locator("#aside").check()
    assert page.locator("#comparison figure").count() == 3
    assert page.locator("#comparison-tables table").count() == 3


def test_options_that_only_the_command_tells_are_listed_too(pair: list[Path]) -> None:
    for folder, share in zip(pair, ("0.1", "0.2"), strict=True):
        settings = (folder / "run.toml").read_text()
        command = f'command = "calmix train x.csv --dev-fraction {share} --lr 1 --online --out {folder}"'
        settings = "\n".join(line for line in settings.splitlines() if not line.startswith("command"))
        (folder / "run.toml").write_text(f"{command}\n{settings}")
    options = comparison_page([read_run(folder) for folder in pair]).split('id="options"')[1]
    row = options.split("--dev-fraction")[1].split("</tr>")[0]
    assert "0.1" in row
    assert "0.2" in row
    assert "--online" not in options
    assert "--out" not in options


def test_it_keeps_nobody_out(barriers: Any, pair: list[Path], tmp_path: Path) -> None:
    assert barriers(write_comparison(pair, tmp_path / "c.html")) == []


def test_a_run_without_fine_tuning_is_compared_with_one_that_was(make_run: Any) -> None:
    runs = [read_run(make_run("tuned", before=True)), read_run(make_run("head", before=True, epochs=0, samples=0))]
    told = comparison_page(runs).split("</section>")[0]
    assert "its head before fine-tuning was at 58.3 %" in told
    assert "nothing was fine-tuned" in told
