"""Which curves of one run, or of several, are drawn in which panel of a figure."""

from collections.abc import Mapping, Sequence

from calmix.report.reliability import ReliabilityCurve, prepare_reliability
from calmix.report.runs import Judged, same_rows
from calmix.report.selective import RiskCurve, prepare_risk_coverage

__all__ = ["other_rows", "reliability_panels", "risk_panels"]

_STAGES = {"before": "before temperature", "after": "after temperature"}
_GAIN = "What is gained by answering only when sure"


def reliability_panels(
    judged: Mapping[str, Sequence[Judged]], *, bins: Mapping[str, int]
) -> dict[str, dict[str, ReliabilityCurve]]:
    """Return the curves of runs by panel and name, for `draw_reliability`.

    Of one run, a panel for each data set has the curves before and after temperature; of several, a panel for each of
    both has a curve for each run.

    Args:
        judged: run → the data sets to draw.
        bins: run → how many bins.
    """
    scaled = {one.title for found in judged.values() for one in found if len(one.probs) > 1}
    panels: dict[str, dict[str, ReliabilityCurve]] = {}
    for run, found in judged.items():
        for one in found:
            for stage, probs in one.probs.items():
                panel, name = one.title, _STAGES[stage] if one.title in scaled else "as supplied"
                if len(judged) > 1:
                    panel, name = f"{panel}, {name}" if one.title in scaled else panel, run
                panels.setdefault(panel, {})[name] = prepare_reliability(probs, one.labels, bins=bins[run])
    return panels


def risk_panels(judged: Mapping[str, Sequence[Judged]]) -> dict[str, dict[str, RiskCurve]]:
    """Return the curves of runs by panel and name, for `draw_risk_coverage`.

    Of one run, one panel has a curve for each data set; of several, a panel for each data set has a curve for each run.
    """
    panels: dict[str, dict[str, RiskCurve]] = {}
    for run, found in judged.items():
        for one in found:
            panel, name = (_GAIN, one.title) if len(judged) == 1 else (f"{_GAIN}: {one.title}", run)
            panels.setdefault(panel, {})[name] = prepare_risk_coverage(one.probs["after"], one.labels)
    return panels


def other_rows(judged: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Return the titles of data sets that are not the same rows in every run that has one."""
    first: dict[str, Judged] = {}
    found: dict[str, None] = {}
    for one in (one for sets in judged.values() for one in sets):
        known = first.setdefault(one.title, one)
        if not same_rows(known, one):
            found[one.title] = None
    return list(found)
