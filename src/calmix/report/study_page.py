"""The page of a study: its tables with what stands, and calibration against accuracy, cost and domain."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from calmix.errors import InputError
from calmix.report.page import render_page, write_page
from calmix.report.titles import DECIMALS, HIGHER, TITLES, model_title

__all__ = ["study_page", "write_study_page"]

_FORMAT = 1
# The figures that diagrams are made of.
_DRAWN = ("task", "model", "setting", "method", "seed", "data", "domain", "scaled", "seconds", "accuracy", "ece", "oe")
# What a study is summed up by: what it is called, and the figures that are it.
_MEASURES = (("accuracy", ("accuracy", "mcc")), ("ECE", ("ece",)), ("NLL", ("nll",)))
_HEADED = tuple(figure for _, figures in _MEASURES for figure in figures)
_DOMAINS = (("in domain", False), ("out of domain", True))

Verdict = Literal["better", "worse", "unclear"]


def write_study_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a study's outcome, beside its `study.json` unless told otherwise; return where."""
    target = Path(folder) / "report.html" if out is None else Path(out)
    write_page(target, study_page(Path(folder) / "study.json"))
    return target


def study_page(file: Path) -> str:
    """Return the page of a study as HTML, from its `study.json`."""
    found = _read(file)
    study, entries = found["study"], found["tables"]
    rows = [{name: row[name] for name in _DRAWN} for row in found["rows"] if row["data"] != "dev"]
    methods = [method["name"] for method in study["methods"]]
    runs = found["runs"]
    headline, details = _headline(study["baseline"], methods, entries)
    return render_page(
        "study.html",
        data={"rows": rows, "methods": methods, "baseline": study["baseline"]},
        study=study,
        headline=headline,
        details=details,
        summary=_summary(study["baseline"], methods, entries),
        tables=_tables(entries, study, methods),
        done=sum(run["status"] == "finished" for run in runs),
        runs=runs,
        filters=found.get("filters", []),
        failed=[run for run in runs if run["status"] == "failed"],
        made=json.dumps({name: found[name] for name in ("calmix", "versions", "study")}, indent=2, ensure_ascii=False),
        short=model_title,
    )


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(f"{file.parent}: holds no outcome of a study (no study.json)")
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: is damaged ({error}); `calmix study --tables` writes it anew") from None
    if found.get("format") != _FORMAT:
        raise InputError(f"{file}: was written by another version; `calmix study --tables` writes it anew")
    return found


def _verdict(entry: Mapping[str, Any]) -> Verdict:
    if not entry["stands"] or entry["difference"] is None:
        return "unclear"
    return "better" if (entry["difference"] > 0) == (entry["figure"] in HIGHER) else "worse"


def _counts(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    told = [_verdict(entry) for entry in entries if entry["stands"] is not None]
    return {"better": told.count("better"), "worse": told.count("worse"), "all": len(told)}


def _headline(baseline: str, methods: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Return which method beats the baseline most often, if any does, and in what: in domain and out of it."""
    of = {method: [e for e in entries if e["method"] == method and e["figure"] in _HEADED] for method in methods}
    found = {method: _counts(here) for method, here in of.items() if method != baseline}
    found = {method: counts for method, counts in found.items() if counts["all"]}
    if not found:
        return "There is nothing to compare yet.", []
    best = max(found, key=lambda method: found[method]["better"] - found[method]["worse"])
    if found[best]["better"] <= found[best]["worse"]:
        return f"No method is clearly better than {baseline}.", []
    details = []
    for title, outside in _DOMAINS:
        here = [e for e in of[best] if _is_outside(e) == outside]
        told = [
            f"{name} {_often(counts)}"
            for name, figures in _MEASURES
            if (counts := _counts([e for e in here if e["figure"] in figures]))["all"]
        ]
        details += [f"{title.capitalize()}: {', '.join(told)}."] if told else []
    return f"{best} is {_often(found[best], f'than {baseline} ')}comparisons.", details


def _often(counts: Mapping[str, int], than: str = "") -> str:
    """Return how often something is better or worse, of all the times it was compared."""
    better, worse, total = counts["better"], counts["worse"], counts["all"]
    every = f"{total} " if than else f"{total}"
    if not better and not worse:
        return f"no different in {every}"
    if not better or not worse:
        return f"{'better' if better else 'worse'} {than}in {better or worse} of {every}"
    return f"better {than}in {better} and worse in {worse} of {every}"


def _is_outside(entry: Mapping[str, Any]) -> bool:
    return str(entry["data"]).startswith("ood-")


def _summary(baseline: str, methods: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, for each method but the baseline, how often a figure is better or worse, in and out of domain."""
    groups: list[tuple[str, list[Mapping[str, Any]]]] = []
    for name, figures in _MEASURES:
        for scaled in (False, True):
            for title, outside in _DOMAINS:
                here = [
                    e for e in entries if e["figure"] in figures and e["scaled"] == scaled and _is_outside(e) == outside
                ]
                if any(e["stands"] is not None for e in here):
                    groups.append((f"{name}{' +TS' if scaled else ''}, {title}", here))
    rows = [
        (method, [_counts([e for e in here if e["method"] == method]) for _, here in groups])
        for method in methods
        if method != baseline
    ]
    return {"titles": [title for title, _ in groups], "rows": rows}


def _tables(
    entries: Sequence[Mapping[str, Any]], study: Mapping[str, Any], methods: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a table for each figure, model and setting, as the study has them."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        # A task may show another figure in the accuracy's place.
        figure = "accuracy" if entry["figure"] == "mcc" and "mcc" not in study["figures"] else entry["figure"]
        found.setdefault((figure, entry["model"], entry["setting"]), []).append(entry)
    tables = []
    for (figure, model, setting), here in found.items():
        columns = list(dict.fromkeys((e["task"], e["data"], e["scaled"], e["figure"]) for e in here))
        cells = {(e["method"], (e["task"], e["data"], e["scaled"], e["figure"])): _cell(e) for e in here}
        parts = [TITLES.get(figure, figure)]
        parts += [model_title(model)] if len(study["models"]) > 1 else []
        parts += [setting] if setting else []
        shown = [method for method in methods if any(e["method"] == method for e in here)]
        tables.append(
            {
                "title": " · ".join(parts),
                "columns": [_column(*column) for column in columns],
                "rows": [(method, [cells.get((method, column)) for column in columns]) for method in shown],
            }
        )
    return tables


def _column(task: str, data: str, scaled: bool, figure: str) -> str:
    place = task if data == "test" else f"{task} → {data.removeprefix('ood-')}"
    return f"{place}{' (MCC)' if figure == 'mcc' else ''}{' +TS' if scaled else ''}"


def _cell(entry: Mapping[str, Any]) -> dict[str, Any]:
    factor, decimals = (1, DECIMALS[entry["figure"]]) if entry["figure"] in DECIMALS else (100, 2)
    spread, low, high = entry["spread"], entry["low"], entry["high"]
    tested = entry["stands"] is not None and low is not None and high is not None
    return {
        "mean": "–" if entry["mean"] is None else f"{factor * entry['mean']:.{decimals}f}",
        "spread": "" if spread is None else f"± {factor * spread:.{decimals}f}",
        "difference": f"{factor * low:+.{decimals}f} to {factor * high:+.{decimals}f}".replace("-", "−")
        if tested
        else "",
        "verdict": _verdict(entry),
        "best": entry["best"],
    }
