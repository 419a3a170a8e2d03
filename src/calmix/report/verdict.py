"""The verdict: in one plain sentence, whether a model's confidence can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calmix.report.reliability import wilson
from calmix.report.runs import Judged

__all__ = ["Finding", "Tone", "Verdict", "find", "prepare_verdict"]

Tone = Literal["honest", "uneven", "sure", "modest", "unknown"]

# Three points: about what people can tell apart when they act on a probability.
_CLOSE = 0.03
_UNEVEN = 0.05
# Fewer rows than this say nothing about a range of confidence.
_FEW = 20

_HEADLINES: dict[Tone, str] = {
    "honest": "Its confidence can be trusted",
    "uneven": "Its confidence is right on average, but not at every level",
    "sure": "It is too sure of itself",
    "modest": "It is right more often than it says",
    "unknown": "Too few rows to tell whether its confidence can be trusted",
}
_OUTSIDE: dict[Tone, str] = {
    "honest": "out of domain its confidence can be trusted",
    "uneven": "out of domain its confidence is right on average only",
    "sure": "out of domain it is too sure of itself",
    "modest": "out of domain it is right more often than it says",
    "unknown": "out of domain there are too few rows to tell",
}


@dataclass(frozen=True)
class Finding:
    """How confidence and accuracy compare on one data set, overall and where most of the predictions are."""

    tone: Tone
    gap: float
    """Mean confidence minus accuracy: above 0 is too sure."""
    low: float
    high: float
    """Its 95 % interval."""
    window: tuple[float, float]
    """The tenth of the scale that holds most of the predictions."""
    says: float
    """The mean confidence there."""
    right: tuple[float, float]
    """The 95 % interval of the accuracy there."""
    rows: int
    """How many predictions are there."""


@dataclass(frozen=True)
class Verdict:
    """What to tell people first."""

    tone: Tone
    headline: str
    sentence: str
    caveats: tuple[str, ...]


def find(judged: Judged, window: tuple[float, float] | None = None) -> Finding:
    """Return how honest the model, as it is handed out, is on a data set; in a given window, or where most rows are."""
    probs = judged.probs["after"]
    confidence = probs.max(axis=1)
    hit = probs.argmax(axis=1) == judged.labels
    difference = confidence - hit
    gap = float(difference.mean())
    half = 1.96 * float(difference.std(ddof=1)) / np.sqrt(len(hit)) if len(hit) > 1 else 1.0
    low, high = max(-1.0, gap - half), min(1.0, gap + half)
    if window is None:
        tenth = int(np.bincount(_tenth(confidence), minlength=10).argmax())
        window = (tenth / 10, (tenth + 1) / 10)
    inside = _tenth(confidence) == round(10 * window[0])
    rows = int(inside.sum())
    return Finding(
        tone=_tone(low, high, judged.figures["after"].get("debiased_ece")),
        gap=gap,
        low=low,
        high=high,
        window=window,
        says=float(confidence[inside].mean()) if rows else float("nan"),
        right=wilson(int(hit[inside].sum()), rows) if rows else (0.0, 1.0),
        rows=rows,
    )


def prepare_verdict(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict on a model from the data sets it was judged on: the first in domain, and all outside."""
    main = next((one for one in judged if not one.outside), judged[0])
    found = find(main)
    outside = [(one, find(one, found.window)) for one in judged if one.outside and one is not main]
    headline = _HEADLINES[found.tone]
    worst = max(outside, key=lambda pair: abs(pair[1].gap), default=None)
    if worst is not None and worst[1].tone != found.tone:
        headline += f"; {_OUTSIDE[worst[1].tone]}"
    sentence = f"When it says {100 * found.says:.0f} %, it is right {_range(found.right)} of the time"
    far = [(one, f) for one, f in outside if f.rows >= _FEW]
    if far:
        sentence += "; out of domain " + ", ".join(
            f"{_range(f.right)} ({one.name.removeprefix('ood-')})" if len(far) > 1 else _range(f.right)
            for one, f in far
        )
    caveats = []
    if main.aside:
        caveats.append("Judged on dev rows, which chose the epoch and the temperature: this flatters. Give --test.")
    few = [one.title for one in judged if len(one.labels) < 200 and (one is main or not one.aside)]
    if few:
        caveats.append(f"Under 200 rows, calibration errors say little: {', '.join(few)}.")
    return Verdict(found.tone if worst is None else _graver(found, worst[1]), headline, f"{sentence}.", tuple(caveats))


def _tenth(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    # As bins are: (0.8, 0.9], (0.9, 1]; a hair's breadth is given for rounding.
    return np.clip(np.ceil(10 * confidence - 1e-9).astype(np.int64) - 1, 0, 9)


def _tone(low: float, high: float, debiased: float | None) -> Tone:
    if low > -_CLOSE and high < _CLOSE:
        return "uneven" if debiased is not None and debiased > _UNEVEN else "honest"
    if low > 0:
        return "sure"
    return "modest" if high < 0 else "unknown"


def _graver(inside: Finding, outside: Finding) -> Tone:
    order: tuple[Tone, ...] = ("honest", "unknown", "modest", "uneven", "sure")
    return max(inside.tone, outside.tone, key=order.index)


def _range(values: tuple[float, float]) -> str:
    low, high = (round(100 * value) for value in values)
    return f"{low} %" if low == high else f"{low}–{high} %"
