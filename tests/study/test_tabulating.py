"""Tables of a study."""

from typing import Any

import numpy as np
import pytest

from calmix.study.collecting import collect
from calmix.study.comparing import Difference
from calmix.study.tabulating import Column, Entry, _mark_best, _ranks, tabulate


def test_a_cell_is_mean_and_spread_over_the_seeds(finished: Any) -> None:
    rows = collect(finished.plan, finished.storage)
    tables = tabulate(finished.plan, finished.storage, rows)
    table = next(table for table in tables if table.figure == "ece")
    assert [(c.data, c.scaled) for c in table.columns] == [
        ("test", False), ("test", True), ("ood-other", False), ("ood-other", True)
    ]  # fmt: skip
    column = table.columns[3]
    found = [r["ece"] for r in rows if (r["method"], r["data"], r["scaled"]) == ("tdmixup", "ood-other", True)]
    entry = table.entries["tdmixup", column]
    assert (entry.mean, entry.spread, entry.seeds) == (
        pytest.approx(np.mean(found)),
        pytest.approx(np.std(found, ddof=1)),
        2,
    )


def test_what_a_temperature_does_not_change_is_shown_once(finished: Any) -> None:
    tables = tabulate(finished.plan, finished.storage, collect(finished.plan, finished.storage))
    shown = {table.figure: [(c.data, c.scaled) for c in table.columns] for table in tables}
    assert shown["accuracy"] == [("test", False), ("ood-other", False)]
    assert shown["seconds"] == [("test", False)]


def test_all_but_the_baseline_are_compared_with_it(finished: Any) -> None:
    tables = tabulate(finished.plan, finished.storage, collect(finished.plan, finished.storage))
    for table in tables:
        for (method, column), entry in table.entries.items():
            tested = method != "erm" and column.figure in ("accuracy", "ece", "oe", "nll", "brier")
            assert (entry.difference is not None) == tested
            if entry.difference is not None:
                base = table.entries["erm", column]
                assert entry.difference.estimate == pytest.approx(entry.mean - base.mean, abs=1e-5)


ECE, ACCURACY = Column("t", "test", False, "ece"), Column("t", "test", False, "accuracy")
STANDS, DOUBTFUL = Difference(-0.1, -0.2, -0.05), Difference(-0.1, -0.2, 0.05)


@pytest.mark.parametrize(("difference", "best"), [(STANDS, True), (DOUBTFUL, False), (None, False)])
def test_the_best_is_marked_only_if_its_difference_stands(difference: Difference | None, best: bool) -> None:
    entries = {("a", ECE): Entry(0.1, 0.0, 3, difference), ("b", ECE): Entry(0.2, 0.0, 3, STANDS)}
    _mark_best(entries, [ECE], ("a", "b"))
    assert (entries["a", ECE].best, entries["b", ECE].best) == (best, False)


def test_more_accuracy_is_better_and_less_error() -> None:
    values = {"a": 0.1, "b": 0.2, "c": 0.3}
    entries = {(m, column): Entry(v, 0.0, 3, STANDS) for m, v in values.items() for column in (ECE, ACCURACY)}
    _mark_best(entries, [ECE, ACCURACY], ("a", "b", "c"))
    assert [key for key, entry in entries.items() if entry.best] == [("a", ECE), ("c", ACCURACY)]


def test_ranks_are_averaged_over_columns_and_shared_by_who_ties() -> None:
    other = Column("u", "test", False, "ece")
    values = {
        ("a", ECE): 0.1,
        ("b", ECE): 0.1,
        ("c", ECE): 0.3,
        ("a", other): 0.3,
        ("b", other): 0.2,
        ("c", other): 0.1,
    }
    entries = {key: Entry(value, 0.0, 3) for key, value in values.items()}
    ranks = _ranks(entries, [ECE, other], ("a", "b", "c"))
    assert ranks == {("a", False): 2.25, ("b", False): 1.75, ("c", False): 2.0}
    # A column that somebody is missing from ranks nobody.
    del entries["c", other]
    assert _ranks(entries, [ECE, other], ("a", "b", "c"))["a", False] == 1.5
