"""Which curves are drawn together."""

from typing import Any

import pytest

from calmix.calibration import ece
from calmix.report import read_run
from calmix.report.panels import other_rows, reliability_panels, risk_panels


@pytest.fixture
def judged(make_run: Any) -> dict[str, Any]:
    """What two runs were judged on: both on the same test rows, one of them on data of another domain as well."""
    plain = read_run(make_run("plain", sets=("test",)))
    mixed = read_run(make_run("mixed", sets=("test", "ood-far"), temperature=2.0))
    return {"plain": plain.judged, "mixed": mixed.judged}


def shape(panels: Any) -> dict[str, list[str]]:
    return {panel: list(curves) for panel, curves in panels.items()}


def test_of_one_run_both_stages_of_a_data_set_are_together(judged: dict[str, Any]) -> None:
    found = reliability_panels({"mixed": judged["mixed"]}, bins={"mixed": 10})
    stages = ["before temperature", "after temperature"]
    assert shape(found) == {"test": stages, "far, out of domain": stages}


def test_of_several_runs_what_can_be_compared_is_together(judged: dict[str, Any]) -> None:
    found = reliability_panels(judged, bins={"plain": 10, "mixed": 5})
    assert shape(found) == {
        "test, before temperature": ["plain", "mixed"],
        "test, after temperature": ["plain", "mixed"],
        "far, out of domain, before temperature": ["mixed"],
        "far, out of domain, after temperature": ["mixed"],
    }
    test = judged["mixed"][0]
    curve = found["test, after temperature"]["mixed"]
    assert (curve.bins, curve.ece) == (5, ece(test.probs["after"], test.labels, bins=5))


def test_what_was_never_scaled_is_as_it_is(judged: dict[str, Any]) -> None:
    bare = {name: [sets[0]] for name, sets in judged.items()}
    for name, (one,) in bare.items():
        bare[name] = [type(one)(**{**vars(one), "probs": {"after": one.probs["after"]}})]
    bins = dict.fromkeys(bare, 10)
    assert shape(reliability_panels({"plain": bare["plain"]}, bins=bins)) == {"test": ["as supplied"]}
    assert shape(reliability_panels(bare, bins=bins)) == {"test": ["plain", "mixed"]}
    # Beside a run that was, it stands where that has its final probabilities.
    mixed = {"plain": bare["plain"], "mixed": judged["mixed"][:1]}
    assert shape(reliability_panels(mixed, bins=bins))["test, after temperature"] == ["plain", "mixed"]


def test_risks_of_several_runs_have_a_panel_for_each_data_set(judged: dict[str, Any]) -> None:
    what = "What is gained by answering only when sure"
    assert shape(risk_panels({"mixed": judged["mixed"]})) == {what: ["test", "far, out of domain"]}
    assert shape(risk_panels(judged)) == {
        f"{what}: test": ["plain", "mixed"],
        f"{what}: far, out of domain": ["mixed"],
    }


def test_data_sets_that_are_other_rows_are_found(make_run: Any, judged: dict[str, Any]) -> None:
    assert other_rows(judged) == []
    fewer = read_run(make_run("fewer", sets=("test",), rows=300)).judged
    assert other_rows({**judged, "fewer": fewer}) == ["test"]
