"""Figures of a study's rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from calmix.data import write_table
from calmix.errors import InputError
from calmix.report import draw_alpha, draw_bars, prepare_alpha, prepare_bars, read_study_rows
from calmix.report.rows import rows_of_studies


def method(name: str, recipe: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "recipe": recipe, "options": options, "of": "", "subset": "", "training": {}}


METHODS = [
    method("erm", "erm"),
    method("mix 0.1", "input-mixup", alpha=0.1),
    method("mix 1", "input-mixup", alpha=1.0),
    method("features", "feature-mixup", alpha=0.4),
    {**method("5 × erm", "erm"), "of": "erm"},
]


def row(name: str, seed: int, value: float, *, scaled: bool = False, data: str = "test") -> dict[str, Any]:
    about = {"task": "mr", "model": "sentence-cnn:v.txt", "setting": "", "data": data, "method": name, "seed": seed}
    about["run"] = f"{name}-{seed}"
    return {**about, "scaled": scaled, "accuracy": value, "ece": value / 10, "oe": None, "seconds": 1.0}


ROWS = [row(m["name"], seed, 0.8 + seed / 100 + k / 50) for k, m in enumerate(METHODS) for seed in (0, 1)]
ROWS += [row("mix 1", 0, 0.1, scaled=True), row("mix 1", 0, 0.1, data="dev")]


def test_figures_go_by_alpha_and_plain_training_is_zero() -> None:
    table = prepare_alpha(METHODS, ROWS, figures=("accuracy", "ece"))
    found = {(r["figure"], r["alpha"]): (r["mean"], r["seeds"]) for r in table.to_pylist()}
    assert found["accuracy", 0.0] == (pytest.approx(0.805), 2)
    assert found["accuracy", 1.0] == (pytest.approx(0.845), 2)
    assert set(found) == {(f, a) for f in ("accuracy", "ece") for a in (0.0, 0.1, 1.0)}
    figure = draw_alpha(table)
    assert figure.axes[0].get_legend().get_texts()[0].get_text() == "mr"
    with pytest.raises(InputError, match="with an alpha"):
        prepare_alpha(METHODS, ROWS, recipe="cls-mixup")


def test_methods_are_bars_in_the_order_asked_for() -> None:
    table = prepare_bars(ROWS, methods=["features", "erm"], figures=("accuracy", "ece"))
    assert list(dict.fromkeys(table["method"].to_pylist())) == ["features", "erm"]
    figure = draw_bars(table)
    assert len(figure.axes) == 2
    heights = [patch.get_height() for patch in figure.axes[1].patches]
    assert heights == pytest.approx([8.65, 8.05])
    assert [axes.get_ylim()[0] for axes in figure.axes] == [0, 0]
    only = prepare_bars(ROWS, scaled=True, figures=("accuracy",)).to_pylist()
    assert [(r["method"], r["mean"], r["spread"]) for r in only] == [("mix 1", pytest.approx(0.1), None)]
    for wrong in ({"methods": ["nobody"]}, {"figures": ["luck"]}):
        with pytest.raises(InputError):
            prepare_bars(ROWS, **wrong)
    with pytest.raises(InputError, match="no run of the study"):
        prepare_bars([])


def test_bars_of_several_studies_stand_side_by_side() -> None:
    own = [row("erm", 0, 0.8), row("erm", 1, 0.8), row("distil", 0, 0.9)]
    # The same runs, whatever another machine made of them.
    other = [row("erm", 1, 0.8), row("erm", 0, 0.81), row("mixup", 0, 0.7), row("mixup", 1, 0.6)]
    table = prepare_bars(rows_of_studies({"a": own, "b": other}), figures=("accuracy",))
    bars = [(r["method"], r["seeds"], r["mean"]) for r in table.to_pylist()]
    assert bars == [("erm", 2, 0.8), ("distil", 1, 0.9), ("mixup", 2, pytest.approx(0.65))]
    assert len(draw_bars(table).axes[0].patches) == 3


def test_a_method_that_studies_made_by_other_runs_is_told_apart() -> None:
    rows = {"a": [row("erm", 0, 0.8), row("mixup", 0, 0.7)], "b": [row("erm", 0, 0.6), row("erm", 1, 0.6)]}
    found = prepare_bars(rows_of_studies(rows), figures=("accuracy",)).to_pylist()
    assert [(r["method"], r["mean"]) for r in found] == [("erm (a)", 0.8), ("erm (b)", 0.6), ("mixup", 0.7)]
    elsewhere = [{**one, "task": "sst2"} for one in rows["b"]]
    found = prepare_bars(rows_of_studies({"a": rows["a"], "b": elsewhere}), figures=("accuracy",)).to_pylist()
    assert [(r["method"], r["task"]) for r in found] == [("erm", "mr"), ("erm", "sst2"), ("mixup", "mr")]


def test_the_rows_of_one_study_stay_as_they_are() -> None:
    assert sorted(map(repr, rows_of_studies({"a": ROWS}))) == sorted(map(repr, ROWS))


def test_outcomes_are_read_as_studies_and_as_results_have_them(tmp_path: Path) -> None:
    study, kept = tmp_path / "study", tmp_path / "kept"
    study.mkdir()
    (study / "study.json").write_text(json.dumps({"study": {"methods": METHODS}, "rows": ROWS}))
    kept.mkdir()
    (kept / "about.json").write_text(json.dumps({"study": {"methods": METHODS}}))
    write_table(pa.Table.from_pylist(ROWS), kept / "study.parquet")
    assert read_study_rows(study) == (METHODS, ROWS) == read_study_rows(kept)
    with pytest.raises(InputError, match="no outcome of a study"):
        read_study_rows(tmp_path)
    (study / "study.json").write_text("{}")
    with pytest.raises(InputError, match="is damaged"):
        read_study_rows(study)
