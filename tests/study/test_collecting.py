"""From run folders to figures."""

import json
from typing import Any

import numpy as np
import pytest

from calmix.calibration import Temperature, ece, nll
from calmix.study.collecting import FIGURE_COLUMNS, collect, figures_table, predictions_of


def test_there_is_a_row_for_each_cell_data_set_and_scaling(finished: Any) -> None:
    rows = collect(finished.plan, finished.storage)
    assert len(rows) == 3 * 2 * 3 * 2
    found = {(row["method"], row["seed"], row["data"], row["scaled"]) for row in rows}
    assert len(found) == len(rows)
    assert {row["domain"] for row in rows if row["data"] == "ood-other"} == {"out"}
    assert {row["domain"] for row in rows if row["data"] in ("dev", "test")} == {"in"}


def test_figures_are_the_runs_own_measured_over_the_studys_bins(finished: Any) -> None:
    rows = [row for row in collect(finished.plan, finished.storage) if row["method"] == "erm"]
    for row in rows:
        metrics = json.loads((finished.storage.folder(row["run"]) / "metrics.json").read_text())
        there = metrics["splits"][row["data"]]["after" if row["scaled"] else "before"]
        for name in ("accuracy", "nll", "brier", "smooth_ece"):
            assert row[name] == pytest.approx(there[name], abs=1e-5)
        assert row["temperature"] == metrics["temperature"]
    cell = next(cell for cell in finished.plan.cells if cell.method == "erm")
    said = predictions_of(cell, finished.storage, "test")
    row = next(r for r in rows if (r["seed"], r["data"], r["scaled"]) == (cell.seed, "test", True))
    assert row["ece"] == pytest.approx(ece(said.probs(scaled=True), said.labels, bins=10))


def test_an_ensemble_is_the_mean_of_its_members_with_a_temperature_of_its_own(finished: Any) -> None:
    cell = next(cell for cell in finished.plan.cells if cell.method == "pair")
    members = [
        next(c for c in finished.plan.cells if c.runs == (key,)) for key in cell.runs if key in _single(finished)
    ]
    assert len(members) == 2
    said = predictions_of(cell, finished.storage, "test")
    mean = np.mean([predictions_of(m, finished.storage, "test").probs(scaled=False) for m in members], axis=0)
    np.testing.assert_allclose(said.probs(scaled=False), mean, atol=1e-12)
    dev = predictions_of(cell, finished.storage, "dev")
    assert said.temperature == dev.temperature == Temperature.fit(dev.logits, dev.labels).temperature
    assert nll(dev.probs(scaled=True), dev.labels) <= nll(dev.probs(scaled=False), dev.labels)


def _single(finished: Any) -> set[str]:
    return {cell.runs[0] for cell in finished.plan.cells if len(cell.runs) == 1}


def test_seconds_include_the_runs_that_a_cell_builds_on(finished: Any) -> None:
    rows = collect(finished.plan, finished.storage)
    for row in rows:
        keys = row["run"].split("+")
        keys += [needed.key for key in keys for needed in finished.plan.runs[key].needs.values()]
        whole = [json.loads((finished.storage.folder(key) / "metrics.json").read_text())["seconds"] for key in keys]
        assert row["seconds"] == pytest.approx(sum(whole))
        assert len(keys) == (1 if row["method"] == "erm" else 2)


def test_a_table_has_the_same_columns_whether_or_not_anything_is_finished(finished: Any, ready: Any) -> None:
    full, nothing = ready(), figures_table([])
    table = figures_table(collect(finished.plan, finished.storage))
    assert table.schema == nothing.schema
    assert set(FIGURE_COLUMNS) <= set(table.column_names)
    assert collect(full.plan, full.storage) == []


def test_rows_with_fewer_choices_are_read_as_such(ready: Any) -> None:
    from calmix.study.working import work

    task = '[task.c]\ntrain = "choices/train"\ndev = "choices/dev"\ntest = "choices/test"'
    prepared = ready('[[method]]\nrecipe = "erm"\n', task=task, head="seeds = 1", choices=True)
    assert work(prepared.plan, prepared.storage, prepared.library).failed == 0
    said = predictions_of(prepared.plan.cells[0], prepared.storage, "test")
    assert said.logits.shape == (24, 4)
    counts = prepared.library.sets("c", 0).test.choice_counts
    assert np.array_equal(np.isfinite(said.logits).sum(axis=1), counts)
    assert np.array_equal(said.labels, prepared.library.sets("c", 0).test.labels)
