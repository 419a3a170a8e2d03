"""Several runs side by side, on the data sets they share."""

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from calmix.errors import InputError
from calmix.report.page import render_page, write_page
from calmix.report.reliability import prepare_reliability
from calmix.report.run_page import curve_data
from calmix.report.runs import Judged, RunFolder, read_run, same_rows, under_one_name
from calmix.report.selective import prepare_risk_coverage
from calmix.report.titles import HIGHER
from calmix.report.verdict import verdict_of
from calmix.training import differences
from calmix.training.evaluating import DECISIVE

__all__ = ["Difference", "compare", "comparison_page", "run_names", "write_comparison"]

_MOST = 8
# What nobody reads to its end.
_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{8,}\b")
# Options that change nothing about a model, or are shown otherwise: the recipe's own are among its settings.
_ELSEWHERE = ("--out", "--set", "--json", "--no-report", "--track", "--push-to-hub")


@dataclass(frozen=True)
class Difference:
    """A figure minus that of the first run, on the same rows, and whether that is a difference at all."""

    low: float
    high: float
    verdict: Literal["better", "worse", "unclear"]


def write_comparison(folders: Sequence[str | Path], out: str | Path = "comparison.html") -> Path:
    """Write the page that compares finished runs; return where."""
    write_page(out, comparison_page([read_run(folder) for folder in folders]))
    return Path(out)


def comparison_page(runs: Sequence[RunFolder]) -> str:
    """Return the page that compares runs with the first of them as HTML."""
    empty = next((run for run in runs if not run.judged), None)
    if empty is not None:
        raise InputError(f"{empty.path}: was judged on no data, so that there is nothing to compare")
    if len(runs) > _MOST:
        raise InputError(f"{len(runs)} runs: at most {_MOST} can be told apart in a diagram; for more, make a study")
    names = run_names([run.path for run in runs])
    matched = under_one_name(runs)
    sets = [_set(name, matched) for name in dict.fromkeys(one.name for run in matched for one in run.judged)]
    return render_page(
        "comparison.html",
        data={"runs": names, "sets": [found["drawn"] for found in sets]},
        names=names,
        verdicts=[verdict_of(run) for run in runs],
        options=_options(runs),
        sets=sets,
    )


def compare(judged: Judged, other: Judged, bins: int) -> dict[str, Difference] | None:
    """Return how one model's figures differ from another's on the same rows; None if the rows are not the same."""
    if not same_rows(judged, other):
        return None
    if judged.probs["after"].shape != other.probs["after"].shape:
        return None
    found = differences(judged.probs["after"], other.probs["after"], judged.labels, bins=bins)
    return {name: Difference(low, high, _verdict(name, low, high)) for name, (low, high) in found.items()}


def _verdict(name: str, low: float, high: float) -> Literal["better", "worse", "unclear"]:
    if not (low > 0 or high < 0):
        return "unclear"
    return "better" if (low > 0) == (name in HIGHER) else "worse"


def _set(name: str, runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the figures of each run on one data set, how they differ from the first run's, and the curves."""
    judged = [next((one for one in run.judged if one.name == name), None) for run in runs]
    first = next(one for one in judged if one is not None)
    rows: list[dict[str, Any]] = []
    for run, one in zip(runs, judged, strict=True):
        against = None if one is None or judged[0] is None or one is judged[0] else compare(one, judged[0], run.bins)
        rows.append({"judged": one, "differences": against})
    drawn: dict[str, Any] = {"name": name, "title": first.title, "outside": first.outside, "aside": first.aside}
    drawn["runs"] = [
        None
        if one is None
        else {
            "reliability": {
                s: curve_data(prepare_reliability(p, one.labels, bins=run.bins)) for s, p in one.probs.items()
            },
            "risk": _risk(one),
            "figures": {s: {key: found.get(key) for key in DECISIVE} for s, found in one.figures.items()},
        }
        for run, one in zip(runs, judged, strict=True)
    ]
    same = all(row["differences"] is not None for row in rows[1:] if row["judged"] is not None)
    return {
        "title": first.title,
        "rows": rows,
        "same": same and judged[0] is not None,
        "some": any(row["differences"] is not None for row in rows[1:]),
        "drawn": drawn,
        "aside": first.aside,
    }


def _risk(judged: Judged) -> dict[str, list[float]]:
    curve = prepare_risk_coverage(judged.probs["after"], judged.labels, most=200)
    return {"coverage": curve.coverage.tolist(), "risk": curve.risk.tolist()}


def _options(runs: Sequence[RunFolder]) -> dict[str, list[str]]:
    """Return the options that differ between the runs, with each run's value."""
    flat = [_flat(run.config) | _asked(run) for run in runs]
    found = {}
    for name in dict.fromkeys(key for one in flat for key in one):
        values = [one.get(name, "–") for one in flat]
        if len(set(values)) > 1:
            found[name] = values
    return found


def _asked(run: RunFolder) -> dict[str, str]:
    """Return the options of a run's command that its settings do not show: they went into the data, say."""
    words = shlex.split(str(run.settings.get("command", "")))
    found: dict[str, list[str]] = {}
    for word, value in itertools.pairwise([*words, "--"]):
        name, equals, given = word.partition("=")
        known = name.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or word == "--" or known in run.config or name in _ELSEWHERE:
            continue
        found.setdefault(name, []).append(given if equals else "yes" if value.startswith("--") else value)
    return {name: _short(", ".join(values)) for name, values in found.items()}


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            values = value if isinstance(value, list) else [value]
            found[f"{prefix}{name}"] = _short(", ".join(_HASH.sub(r"\1…", str(one)) for one in values))
    return found


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them apart."""
    whole = [path.absolute().parts for path in paths]
    if len(set(whole)) < len(whole):
        twice = next(path for k, path in enumerate(paths) if whole.index(whole[k]) < k)
        raise InputError(f"{twice}: is given twice")
    for depth in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    return ["/".join(parts) for parts in whole]
