"""The page of a run, a map or an evaluation."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.report.confusion import prepare_confusion
from calmix.report.curves import prepare_curves
from calmix.report.knowledge import prepare_knowledge
from calmix.report.packing import pack
from calmix.report.page import render_page, write_page
from calmix.report.reliability import ReliabilityCurve, prepare_reliability
from calmix.report.runs import Judged, RunFolder, Stage, read_run
from calmix.report.samples import prepare_samples
from calmix.report.suspects import prepare_suspects
from calmix.report.verdict import verdict_of
from calmix.training.learning_notes import UNFINISHED
from calmix.training.mapping import WITHHELD

__all__ = ["curve_data", "run_page", "set_data", "write_run_page"]

# The figures of the table in the page, with what they are called and whether they are shares.
FIGURES = (
    ("accuracy", "accuracy", True),
    ("macro_f1", "macro F1", True),
    ("ece", "ECE", True),
    ("debiased_ece", "debiased ECE", True),
    ("adaptive_ece", "adaptive ECE", True),
    ("classwise_ece", "class-wise ECE", True),
    ("oe", "OE", True),
    ("mce", "MCE", True),
    ("nll", "NLL", False),
    ("brier", "Brier", False),
    ("aurc", "AURC", False),
)
# Notes of a run that only say what was done; all others are to be heeded.
_INFORMATION = re.compile(
    r"split off the training set|kept for the guarantee|learn from the teacher alone|^partners: |^dynamics: recorded"
    r"|^filter: the map's AUM filter dropped \d|^head: |^dev: none is split off"
)
# What must be read with the verdict; other notes are folded, unless there are few.
_FOREMOST, _NOT_FOLDED = ("training:",), 2
# More classes than this are listed by their commonest mistakes instead of in a matrix.
_MATRIX = 24
# Reliability by class, of the classes predicted most.
_CLASSES = 60


def write_run_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of the finished run in a folder, there as `report.html` unless told otherwise; return where."""
    target = Path(folder) / "report.html" if out is None else Path(out)
    write_page(target, run_page(read_run(folder)))
    return target


def run_page(run: RunFolder) -> str:
    """Return the page of a run as HTML."""
    curves = prepare_curves(run.history, run.metrics.get("best_epoch"))
    verdict = verdict_of(run) if run.judged else None
    suspects = prepare_suspects(run.dynamics) if run.dynamics is not None and run.kind == "map" else None
    # What the headline says already is no note.
    said = []
    if verdict is not None and verdict.knows.state == "unfinished":
        said.append(UNFINISHED)
    if suspects is not None and suspects.withheld:
        said.append(WITHHELD)
    notes = [
        (note, not _INFORMATION.search(note))
        for note in run.metrics.get("notes", [])
        if not note.startswith(tuple(said))
    ]
    shown = [(caveat, True) for caveat in (verdict.caveats if verdict else ())]
    shown += [one for one in notes if one[0].startswith(_FOREMOST)]
    folded = [one for one in notes if not one[0].startswith(_FOREMOST)]
    if len(folded) <= _NOT_FOLDED:
        shown, folded = [*shown, *folded], []
    data: dict[str, Any] = {
        "key": run.settings.get("hash", run.name),
        "sets": [set_data(judged, run.bins) for judged in run.judged],
        "guarantee": run.metrics.get("guarantee", {}).get("threshold"),
        "promises": run.metrics.get("promises"),
        "curves": {"epochs": curves.epochs, "panels": curves.panels, "best": curves.best},
        "samples": None,
        "columns": run.columns,
    }
    if run.dynamics is not None and run.texts is not None:
        data["samples"] = prepare_samples(run.dynamics, run.texts)
    main = [judged for judged in run.judged if not judged.aside] or run.judged[:1]
    return render_page(
        "run.html",
        data=data,
        run=run,
        shown=[(judged, prepare_knowledge(judged)) for judged in main[:3]],
        verdict=verdict,
        told=shown,
        folded=folded,
        suspects=suspects,
        figures=FIGURES,
        below_chance=any(
            inside["debiased_ece"] < 0
            for judged in run.judged
            for found in judged.figures.values()
            for inside in (found, *found.get("groups", {}).values())
            if "debiased_ece" in inside
        ),
        confusions=[(judged, _confusion(judged)) for judged in run.judged if judged.classes],
        samples=data["samples"],
        curves=curves,
        naming=_naming(run.columns),
        table=_table(run),
    )


def _table(run: RunFolder) -> str:
    """Return the training table as its command named it, or a word in its place."""
    words = shlex.split(str(run.settings.get("command", "")))
    named = len(words) > 2 and words[:2] in (["calmix", "map"], ["calmix", "train"]) and not words[2].startswith("-")
    return shlex.quote(words[2]) if named else "TABLE"


def _naming(columns: Mapping[str, str]) -> str:
    """Return the options of a command that name these columns, each with a blank in front."""
    known = [role for role in ("text", "text_b", "choices", "label", "id") if role in columns]
    return "".join(f" --{role.replace('_', '-')} {shlex.quote(columns[role])}" for role in known)


def set_data(judged: Judged, bins: int) -> dict[str, Any]:
    """Return what the page's script draws of a data set: reliability, overall and by class, and confidence by row."""
    return {
        "name": judged.name,
        "title": judged.title,
        "outside": judged.outside,
        "aside": judged.aside,
        "rows": len(judged.labels),
        "reliability": {
            stage: curve_data(prepare_reliability(probs, judged.labels, bins=bins))
            for stage, probs in judged.probs.items()
        },
        "classes": _by_class(judged, bins),
        "selective": {stage: _ranked(probs, judged.labels) for stage, probs in judged.probs.items()},
    }


def curve_data(curve: ReliabilityCurve) -> dict[str, Any]:
    """Return a reliability curve as plain lists."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(curve).items()}


def _by_class(judged: Judged, bins: int) -> list[dict[str, Any]]:
    """Return the curves of the rows that are predicted as each class, the classes predicted most if there are many."""
    if not judged.classes:
        return []
    winners = {stage: probs.argmax(axis=1) for stage, probs in judged.probs.items()}
    counts = np.bincount(winners["after"], minlength=len(judged.classes))
    chosen = sorted(np.argsort(-counts, kind="stable")[:_CLASSES].tolist())
    found = []
    for k in chosen:
        curves: dict[Stage, Any] = {}
        for stage, probs in judged.probs.items():
            rows = winners[stage] == k
            if rows.any():
                curves[stage] = curve_data(prepare_reliability(probs[rows], judged.labels[rows], bins=bins))
        if curves:
            found.append({"name": judged.classes[k], "reliability": curves})
    return found


def _ranked(probs: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, Any]:
    """Return confidence, highest first, and whether each is right."""
    confidence, hit = probs.max(axis=1), probs.argmax(axis=1) == labels
    order = np.argsort(-confidence, kind="stable")
    return {"confidence": pack(confidence[order].astype(np.float32)), "hit": pack(hit[order].astype(np.uint8))}


def _confusion(judged: Judged) -> dict[str, Any]:
    found = prepare_confusion(judged.probs["after"], judged.labels, judged.classes)
    # Shades are steps of a scale, as classes: a style in the element would be against the policy.
    shades = np.ceil(found.shares * 9).astype(int)
    matrix = None
    if len(judged.classes) <= _MATRIX:
        matrix = [
            list(zip(row, shade, strict=True))
            for row, shade in zip(found.counts.tolist(), shades.tolist(), strict=True)
        ]
    return {"matrix": matrix, "mistakes": found.mistakes(), "classes": judged.classes, "counts": found.counts}
