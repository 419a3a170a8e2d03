"""The page of a study."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.report import write_study_page
from calmix.report.study_page import study_page

METHODS = ("plain", "<b>mixup", "worse")


def entry(method: str, data: str, figure: str, scaled: bool, mean: float, change: float | None) -> dict[str, Any]:
    return {
        "model": "some/model", "setting": "", "task": "desk", "data": data, "scaled": scaled, "figure": figure,
        "method": method, "mean": mean, "spread": 0.004, "seeds": 2, "difference": change,
        "low": None if change is None else change - 0.01, "high": None if change is None else change + 0.01,
        "stands": None if change is None else abs(change) > 0.01, "best": change is not None and change < -0.01,
        "rank": 1.0,
    }  # fmt: skip


@pytest.fixture
def outcome() -> dict[str, Any]:
    """An outcome in which one method is better calibrated than the baseline, and another worse."""
    changes = {"plain": None, "<b>mixup": -0.02, "worse": 0.03}
    rows, tables = [], []
    for k, (method, change) in enumerate(changes.items()):
        for data in ("dev", "test", "ood-far"):
            for scaled in (False, True):
                for seed in (0, 1):
                    about = {"task": "desk", "model": "some/model", "setting": "", "method": method, "seed": seed}
                    about |= {"run": f"{k}{seed}", "data": data, "domain": "out" if data == "ood-far" else "in"}
                    figures = {"accuracy": 0.8 + seed / 100, "ece": 0.05 + (change or 0) + seed / 200, "oe": 0.01}
                    rows.append({**about, "scaled": scaled, "n": 100, "seconds": 10.0 + k, **figures})
        for data in ("test", "ood-far"):
            tables.append(entry(method, data, "accuracy", False, 0.8, None if change is None else 0.0))
            tables.append(entry(method, data, "nll", False, 0.5, None if change is None else 0.0))
            tables += [entry(method, data, "ece", s, 0.05 + (change or 0), change) for s in (False, True)]
    runs = [
        {"key": str(k), "task": "desk", "recipe": "erm", "seed": 0, "status": "finished", "error": None}
        for k in range(5)
    ]
    runs.append({**runs[0], "status": "failed", "error": "</script> & more"})
    study = {
        "title": "A <i>study", "note": "", "tasks": ["desk"], "models": ["some/model"], "seeds": [0, 1], "bins": 15,
        "methods": [{"name": name} for name in METHODS], "settings": {"": {}}, "baseline": "plain", "spread": "std",
        "figures": ["accuracy", "ece", "nll"],
    }  # fmt: skip
    judged = {"task": "desk", "model": "some/model", "seed": 0, "methods": ["<b>mixup"], "region": "easy"}
    filters = [{**judged, "judged": 1200, "dropped": 30}, {**judged, "seed": 1, "judged": 1200, "dropped": 0}]
    found = {"format": 1, "calmix": "0", "versions": {}, "study": study, "runs": runs, "rows": rows, "tables": tables}
    return {**found, "filters": filters}


@pytest.fixture
def folder(tmp_path: Path, outcome: dict[str, Any]) -> Path:
    (tmp_path / "study.json").write_text(json.dumps(outcome))
    return tmp_path


def test_the_headline_names_the_method_that_beats_the_baseline_most_often_and_in_what(
    folder: Path, outcome: Any
) -> None:
    html = study_page(folder / "study.json")
    assert "&lt;b&gt;mixup is better than plain in 4 of 8 comparisons." in html
    assert "In domain: accuracy no different in 1, ECE better in 2 of 2, NLL no different in 1." in html
    assert "Out of domain: accuracy no different in 1, ECE better in 2 of 2, NLL no different in 1." in html
    for row in outcome["tables"]:
        if row["method"] == "<b>mixup" and row["figure"] == "nll" and row["data"] == "ood-far":
            row |= {"stands": True, "difference": 0.2}
    (folder / "study.json").write_text(json.dumps(outcome))
    html = study_page(folder / "study.json")
    assert "&lt;b&gt;mixup is better than plain in 4 and worse in 1 of 8 comparisons." in html
    assert "ECE better in 2 of 2, NLL worse in 1 of 1." in html
    for row in outcome["tables"]:
        row["stands"] = None if row["stands"] is None else False
    (folder / "study.json").write_text(json.dumps(outcome))
    assert "No method is clearly better than plain." in study_page(folder / "study.json")
    outcome["tables"] = []
    (folder / "study.json").write_text(json.dumps(outcome))
    assert "There is nothing to compare yet." in study_page(folder / "study.json")


def test_the_summary_counts_accuracy_ece_and_nll_in_and_out_of_domain(folder: Path) -> None:
    html = study_page(folder / "study.json")
    summary = html[html.index("<table") : html.index("</table>")]
    heads = re.findall(r'<th scope="col">([^<]*)</th>', summary)
    both = ["in domain", "out of domain"]
    assert heads == ["method", *(f"{name}, {d}" for name in ("accuracy", "ECE", "ECE +TS", "NLL") for d in both)]
    assert summary.count("1 worse") == 4


def test_the_tables_are_those_of_the_study_with_what_stands(folder: Path) -> None:
    html = study_page(folder / "study.json")
    tables = dict(re.findall(r"<h3><bdi>([^<]*)</bdi></h3>(.*?)</table>", html, flags=re.DOTALL))
    assert list(tables) == ["Accuracy (%)", "NLL", "ECE (%)"]
    heads = re.findall(r'<th scope="col"><bdi>([^<]*)</bdi>', tables["ECE (%)"])
    assert heads == ["desk", "desk +TS", "desk → far", "desk → far +TS"]
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', tables["ECE (%)"], flags=re.DOTALL)
    assert len(rows) == 3
    assert rows[0].count("5.00") == 4
    assert "better" not in rows[0]
    assert rows[1].count("−3.00 to −1.00 better") == 4
    assert rows[1].count("class=best") == 4
    assert rows[2].count("+2.00 to +4.00 worse") == 4


def test_what_is_missing_and_what_failed_is_said(folder: Path) -> None:
    html = study_page(folder / "study.json")
    assert "1 of 6 runs are missing" in html
    assert "&lt;/script&gt; &amp; more" in html
    assert html.count("<script") == 2
    assert "<i>study" not in html


def test_what_filters_dropped_is_said_and_that_one_dropped_nothing(folder: Path, outcome: Any) -> None:
    html = study_page(folder / "study.json")
    assert html.count("<td>1,200</td>") == 2
    assert "trained as without a filter" in html
    outcome["filters"] = outcome["filters"][:1]
    (folder / "study.json").write_text(json.dumps(outcome))
    assert "trained as without a filter" not in study_page(folder / "study.json")
    del outcome["filters"]  # as it was written before there were such
    (folder / "study.json").write_text(json.dumps(outcome))
    assert "AUM filters" not in study_page(folder / "study.json")


def test_figures_that_are_not_finite_are_dashes(folder: Path, outcome: Any) -> None:
    outcome["tables"][0] |= {"mean": None, "spread": None}
    outcome["rows"][0]["ece"] = None
    (folder / "study.json").write_text(json.dumps(outcome))
    assert "–" in study_page(folder / "study.json")


@pytest.mark.parametrize(("content", "message"), [(None, "no study.json"), ("{", "damaged"), ("{}", "another version")])
def test_what_is_no_outcome_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(InputError, match=message):
        write_study_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("width", [1280, 390])
def test_its_diagrams_follow_their_choices(open_page: Any, folder: Path, width: int) -> None:
    page = open_page(write_study_page(folder), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    figures, dots = page.locator("#study figure"), page.locator("#study figure").first.locator(".dot")
    assert figures.count() == 2  # dev is not shown
    assert dots.count() == 3 * (1 + 2)
    for kind, panels in (("seconds", 2), ("domain", 1), ("seeds", 2), ("accuracy-seeds", 2)):
        page.select_option("#study-diagram", kind)
        assert figures.count() == panels, kind
        assert dots.count() == 9
        assert page.locator("#study-tables table").count() == panels
    assert page.locator("#study-stage").is_hidden()
    assert page.locator("#study-model").is_hidden()
    assert "plain (the baseline)" in page.locator("#study-legend").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_keeps_nobody_out(barriers: Any, folder: Path, scheme: str) -> None:
    assert barriers(write_study_page(folder), color_scheme=scheme) == []


def test_narrow_tables_share_a_line_where_there_is_room(open_page: Any, folder: Path) -> None:
    path = write_study_page(folder)

    def heights(width: int) -> list[float]:
        return [heading.bounding_box()["y"] for heading in open_page(path, width=width).locator("#tables h3").all()]

    first, second, _ = heights(1280)
    assert first == second
    assert len(set(heights(390))) == 3
