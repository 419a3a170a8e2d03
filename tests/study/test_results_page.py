"""The page of results is made from the outcomes of studies."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(tool_called: Any) -> Any:
    return tool_called("results_page")


def test_each_study_that_has_an_outcome_is_a_section(tool: Any, finished: Any, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    for name in ("mine", "open"):
        shutil.copy(finished.order.study_file, tmp_path / "studies" / f"{name}.toml")
    with pytest.raises(SystemExit, match="no study has an outcome"):
        tool.main(tmp_path)
    place = tmp_path / "results" / "mine"
    place.mkdir(parents=True)
    (place / "verdict.md").write_text("Nothing reproduced.\n")
    (place.parent / "summary.md").write_text("## In short\n")
    outcomes = tmp_path / "outcomes"
    outcomes.mkdir()
    shutil.copytree(finished.order.out, outcomes / "mine", ignore=shutil.ignore_patterns("runs"))
    tool.main(tmp_path, outcomes)
    # What was taken is enough to make the page again.
    shutil.rmtree(outcomes)
    tool.main(tmp_path)
    taken = {path.name for path in place.iterdir()}
    assert taken == {"about.json", "study.md", "study.parquet", "tables.parquet", "verdict.md"}
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "## Two \\| ways\n" in page
    assert "`calmix study studies/mine.toml --out mine`, bert-3-2, seeds 0, 1" in page
    assert page.index("## In short") < page.index("Nothing reproduced.") < page.index("### ECE (%)")
    assert "### Accuracy (%)" in page
    assert "### NLL" not in page
    assert "open" not in page


def test_every_model_has_its_tables_and_some_papers_have_more_of_them(tool: Any, tmp_path: Path) -> None:
    runs = [
        {"torch": "2.11", "machine": "Linux", "gpu": "H200", "runs": 5},
        {"torch": "2.13+cpu", "machine": "Mac", "runs": 2},
        {"torch": "2.11", "machine": "Linux", "runs": 1},
    ]
    about = {"study": {"models": ["a", "b"], "seeds": [0]}, "calmix": "1", "made_with": runs}
    (tmp_path / "about.json").write_text(json.dumps(about))
    tables = [f"## {name} (%) · {model}\n\n|x|\n" for model in "ab" for name in ("ECE", "OE", "AURC")]
    (tmp_path / "study.md").write_text("# Title\n\nhead\n\n" + "\n".join(tables))
    found = tool.section("p5-images", tmp_path)
    assert [line for line in found.splitlines() if line.startswith("###")] == [
        "### ECE (%) · a", "### OE (%) · a", "### ECE (%) · b", "### OE (%) · b"]  # fmt: skip
    assert "5 runs with torch 2.11 on H200; 2 runs with torch 2.13+cpu on Mac; 1 runs with torch 2.11 on an " in found
    assert "OE" not in tool.section("p1-table", tmp_path)


def test_it_counts_where_single_models_differ_from_plain_training(tool: Any, tmp_path: Path) -> None:
    def row(
        method: str, figure: str, scaled: bool, mean: float, difference: float | None, stands: bool
    ) -> dict[str, Any]:
        place = {"model": "m", "setting": "", "task": "t", "data": "test", "figure": figure, "scaled": scaled}
        return {**place, "method": method, "mean": mean, "difference": difference, "stands": stands}

    rows = []
    for figure, scaled in (("ece", False), ("ece", True), ("nll", True)):
        rows.append(row("erm", figure, scaled, 0.5, None, False))
        rows.append(row("mixup", figure, scaled, 0.4, -0.1, not scaled))
        rows.append(row("smooth", figure, scaled, 0.6, 0.1, figure == "ece"))
        rows.append(row("5 × erm", figure, scaled, 0.3, -0.2, True))
    for name, baseline in (("one", "erm"), ("other", "mixup")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "about.json").write_text(json.dumps({"study": {"baseline": baseline}}))
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "tables.parquet")
    found = tool.counted([tmp_path / "one", tmp_path / "other"])
    assert "with plain training 2 times" in found
    assert "Before temperature scaling, ECE is clearly lower in 1 and clearly higher in 1 of these." in found
    assert "After it, ECE is clearly lower in 0 and clearly higher in 1, and NLL is clearly lower in 0 and" in found
    assert "Of 2 columns of NLL after scaling, five plain runs averaged are the best in 2." in found


def test_the_page_in_docs_is_the_one_that_the_kept_results_make(tool: Any, tmp_path: Path) -> None:
    for folder in ("studies", "results"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    tool.main(tmp_path)
    assert (tmp_path / "docs" / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()
