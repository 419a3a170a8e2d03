"""The verdict: in one plain sentence, whether a model's confidence can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calmix.report.reliability import wilson
from calmix.report.runs import Judged

__all__ = ["Finding", "Said", "Tone", "Verdict", "find", "prepare_verdict"]

Tone = Literal["honest", "uneven", "sure", "modest", "unknown"]

# Three points: about what people can tell apart when they act on a probability.
_CLOSE = 0.03
_UNEVEN = 0.05
# Fewer rows than this say nothing about a range of confidence.
_FEW = 20
_GRAVITY: tuple[Tone, ...] = ("honest", "unknown", "modest", "uneven", "sure")

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
class Said:
    """What some predictions say, and how often they are right."""

    says: float
    """Their mean confidence."""
    right: tuple[float, float]
    """The 95 % interval of their accuracy."""
    rows: int

    def shows(self, tone: Tone) -> bool:
        """Return whether a reader who sees these numbers, as they are printed, finds the tone in them."""
        says, (low, high) = _whole(self.says), map(_whole, self.right)
        beyond = max(low - says, says - high)
        return {
            "honest": beyond <= 100 * _CLOSE,
            "uneven": beyond > 0,
            "sure": says > high,
            "modest": says < low,
            "unknown": beyond <= 0,
        }[tone]


@dataclass(frozen=True)
class Finding:
    """How confidence and accuracy compare on one data set: over all rows, and in each tenth of the scale."""

    tone: Tone
    gap: float
    """Mean confidence minus accuracy: above 0 is too sure."""
    overall: Said
    tenths: dict[int, Said]
    """Those that hold enough rows to say something, the fullest first."""


@dataclass(frozen=True)
class Verdict:
    """What to tell people first."""

    tone: Tone
    headline: str
    sentence: str
    caveats: tuple[str, ...]


def find(judged: Judged) -> Finding:
    """Return how honest the model, as it is handed out, is on a data set."""
    probs = judged.probs["after"]
    confidence = probs.max(axis=1)
    hit = probs.argmax(axis=1) == judged.labels
    overall = _overall(confidence, hit)
    place = _tenth(confidence)
    counts = np.bincount(place, minlength=10)
    tenths = {}
    for tenth in np.argsort(-counts, kind="stable").tolist():
        inside, rows = place == tenth, int(counts[tenth])
        if rows >= _FEW:
            tenths[tenth] = Said(float(confidence[inside].mean()), wilson(int(hit[inside].sum()), rows), rows)
    fullest = next(iter(tenths.values()), overall)
    return Finding(
        tone=_tone(overall, fullest, judged.figures["after"].get("debiased_ece")),
        gap=float((confidence - hit).mean()),
        overall=overall,
        tenths=tenths,
    )


def _overall(confidence: NDArray[np.float64], hit: NDArray[np.bool_]) -> Said:
    """Return what all rows say; the interval is that of confidence minus hit, which varies less than the hits alone."""
    says, rows = float(confidence.mean()), len(hit)
    if hit.all() or not hit.any():  # nothing varies, and yet little may be known
        return Said(says, wilson(int(hit.sum()), rows), rows)
    accuracy, half = float(hit.mean()), 1.96 * float((confidence - hit).std(ddof=1)) / np.sqrt(rows)
    return Said(says, (max(0.0, accuracy - half), min(1.0, accuracy + half)), rows)


def prepare_verdict(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict on a model from the data sets it was judged on: the first in domain, and all outside.

    Headline and sentence never disagree: the numbers are those of the fullest tenth of the scale in which the
    headline can be seen, or of all rows.
    """
    main = next((one for one in judged if not one.outside), judged[0])
    found = find(main)
    outside = {one.name.removeprefix("ood-"): find(one) for one in judged if one.outside and one is not main}
    worst = max(outside.values(), key=lambda f: (_GRAVITY.index(f.tone), abs(f.gap)), default=None)
    headline = _HEADLINES[found.tone]
    if worst is not None and worst.tone != found.tone:
        headline += f"; {_OUTSIDE[worst.tone]}"
    tenth = _telling(found)
    said = found.overall if tenth is None else found.tenths[tenth]
    how = "On average it says" if tenth is None else "When it says"
    sentence = (
        f"{how} {_whole(said.says)} %, {'and' if tenth is None else 'it'} is right {_range(said.right)} of the time"
    )
    far = {name: f for name, f in outside.items() if f.overall.rows >= _FEW}
    if far:
        parts = [_elsewhere(f, tenth, said.says) + (f" ({name})" if len(far) > 1 else "") for name, f in far.items()]
        sentence += f"; out of domain {', '.join(parts)}"
    caveats = []
    if main.aside:
        caveats.append("Judged on dev rows, which chose the epoch and the temperature: this flatters. Give --test.")
    few = [one.title for one in judged if len(one.labels) < 200 and (one is main or not one.aside)]
    if few:
        caveats.append(f"Under 200 rows, calibration errors say little: {', '.join(few)}.")
    tones = [found.tone, *(f.tone for f in outside.values())]
    return Verdict(max(tones, key=_GRAVITY.index), headline, f"{sentence}.", tuple(caveats))


def _telling(found: Finding) -> int | None:
    """Return the tenth of the scale to quote: the fullest that shows the tone; None: all rows."""
    return next((tenth for tenth, said in found.tenths.items() if said.shows(found.tone)), None)


def _elsewhere(found: Finding, tenth: int | None, says: float) -> str:
    """Return how often it is right out of domain, where it says the same; where that hides the tone, over all rows."""
    there = None if tenth is None else found.tenths.get(tenth)
    if there is not None and Said(says, there.right, there.rows).shows(found.tone):
        return _range(there.right)
    return f"it says {_whole(found.overall.says)} % on average and is right {_range(found.overall.right)}"


def _tenth(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    # As bins are: (0.8, 0.9], (0.9, 1]; a hair's breadth is given for rounding.
    return np.clip(np.ceil(10 * confidence - 1e-9).astype(np.int64) - 1, 0, 9)


def _tone(overall: Said, fullest: Said, debiased: float | None) -> Tone:
    low, high = (overall.says - right for right in reversed(overall.right))
    if low > -_CLOSE and high < _CLOSE:
        level = fullest.shows("honest") and not (debiased is not None and debiased > _UNEVEN)
        return "honest" if level else "uneven"
    # By what is printed: a difference that rounding hides is none.
    return next((tone for tone in ("sure", "modest") if overall.shows(tone)), "unknown")


def _whole(share: float) -> int:
    return round(100 * share)


def _range(values: tuple[float, float]) -> str:
    low, high = map(_whole, values)
    return f"{low} %" if low == high else f"{low}–{high} %"
