"""The verdict, in plain words: what a model knows, and whether its confidence can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calmix.report.knowledge import Course, Knowledge, course_of, prepare_knowledge
from calmix.report.reliability import wilson
from calmix.report.runs import Judged, RunFolder

__all__ = ["Colour", "Finding", "Said", "Tone", "Verdict", "find", "prepare_verdict", "verdict_of"]

Tone = Literal["honest", "uneven", "sure", "modest", "unknown"]
Colour = Literal["good", "warn", "bad"]

# Three points: about what people can tell apart when they act on a probability.
_CLOSE = 0.03
_UNEVEN = 0.05
# A gap of less is slight.
_SLIGHT = 0.05
# Fewer rows than this say nothing about a range of confidence.
_FEW = 20
_GRAVITY: tuple[Tone, ...] = ("honest", "unknown", "modest", "uneven", "sure")

_HEADLINES: dict[Tone, str] = {
    "honest": "and its confidence can be trusted",
    "uneven": "and its confidence is right on average, but not at every level",
    "sure": "but overconfident",
    "modest": "but underconfident",
    "unknown": "but too few rows to tell whether its confidence can be trusted",
}
_OUTSIDE: dict[Tone, str] = {
    "honest": "and its confidence can be trusted",
    "uneven": "and its confidence is right on average only",
    "sure": "and overconfident",
    "modest": "and underconfident",
    "unknown": "with too few rows to tell",
}
_UNLEARNT = {
    "hardly": "It has hardly learnt anything",
    "unfinished": "It was still learning when its training ended",
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
    """Mean confidence minus accuracy: above 0 is overconfident."""
    right: float
    """The accuracy."""
    overall: Said
    tenths: dict[int, Said]
    """Those that hold enough rows to say something, the fullest first."""
    errors: dict[int, float]
    """The part that each of these has in the gap: confidence minus hits, summed over its rows, by all rows."""

    @property
    def slight(self) -> bool:
        """Whether the gap is one, but small."""
        return self.tone in ("sure", "modest") and abs(self.gap) < _SLIGHT

    @property
    def colour(self) -> Colour:
        """How grave it is."""
        return "good" if self.tone == "honest" else "bad" if self.tone == "sure" and not self.slight else "warn"


@dataclass(frozen=True)
class Verdict:
    """What to tell people first."""

    colour: Colour
    tone: Tone
    """Of its confidence, where it is worst."""
    headline: str
    knows: Knowledge
    """What it knows, on the data it is judged by first."""
    sentence: str
    """On its confidence."""
    caveats: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it, without the caveats."""
        return f"{self.headline}. {self.knows.sentence} {self.sentence}"


def verdict_of(run: RunFolder) -> Verdict:
    """Return the verdict on the model of a run that was judged on something."""
    return prepare_verdict(run.judged, course_of(run))


def find(judged: Judged) -> Finding:
    """Return how honest the model, as it is handed out, is on a data set."""
    probs = judged.probs["after"]
    confidence = probs.max(axis=1)
    hit = probs.argmax(axis=1) == judged.labels
    overall = _overall(confidence, hit)
    place = _tenth(confidence)
    counts = np.bincount(place, minlength=10)
    tenths, errors = {}, {}
    for tenth in np.argsort(-counts, kind="stable").tolist():
        inside, rows = place == tenth, int(counts[tenth])
        if rows >= _FEW:
            tenths[tenth] = Said(float(confidence[inside].mean()), wilson(int(hit[inside].sum()), rows), rows)
            errors[tenth] = float((confidence - hit)[inside].sum() / len(hit))
    fullest = next(iter(tenths.values()), overall)
    return Finding(
        tone=_tone(overall, fullest, judged.figures["after"].get("debiased_ece")),
        gap=float((confidence - hit).mean()),
        right=float(hit.mean()),
        overall=overall,
        tenths=tenths,
        errors=errors,
    )


def _overall(confidence: NDArray[np.float64], hit: NDArray[np.bool_]) -> Said:
    """Return what all rows say; the interval is that of confidence minus hit, which varies less than the hits alone."""
    says, rows = float(confidence.mean()), len(hit)
    if hit.all() or not hit.any():  # nothing varies, and yet little may be known
        return Said(says, wilson(int(hit.sum()), rows), rows)
    accuracy, half = float(hit.mean()), 1.96 * float((confidence - hit).std(ddof=1)) / np.sqrt(rows)
    return Said(says, (max(0.0, accuracy - half), min(1.0, accuracy + half)), rows)


def prepare_verdict(judged: Sequence[Judged], course: Course | None = None) -> Verdict:
    """Return the verdict on a model from the data sets it was judged on: the first in domain, and all outside.

    What it knows comes first: of a model that has hardly learnt anything, or whose training broke off, the headline
    says that and nothing else. Headline and sentence never disagree: the numbers are those of all rows, in which the
    headline can be seen; where errors cancel, also those of a range of confidence in which they do not.
    """
    main = next((one for one in judged if not one.outside), judged[0])
    found, knows = find(main), prepare_knowledge(main, course)
    outside = {one.name.removeprefix("ood-"): find(one) for one in judged if one.outside and one is not main}
    worst = max(outside.values(), key=lambda f: (_GRAVITY.index(f.tone), abs(f.gap)), default=None)
    tone = max((found.tone, *(f.tone for f in outside.values())), key=_GRAVITY.index)
    colours = {found.colour, *(f.colour for f in outside.values())}
    colour: Colour = "bad" if "bad" in colours else "warn" if "warn" in colours else "good"
    several = sum(not one.outside and not one.aside for one in judged) > 1
    of = f"{main.title}: " if several else ""
    if knows.state == "learnt":
        headline = _headline(f"{of}right" if of else "Right", found, _HEADLINES)
        if worst is not None and (worst.tone, worst.slight) != (found.tone, found.slight):
            headline += f"; out of domain {_headline('right', worst, _OUTSIDE, of_the_time=False)}"
    else:
        headline, colour = f"{of}{_UNLEARNT[knows.state]}", "bad" if knows.state == "hardly" else _at_least_warn(colour)
    sentence = f"On average it claims {_whole(found.overall.says)} % and is right {_range(found.overall.right)} of the"
    sentence += f" time{_where(found)}"
    far = {name: f for name, f in outside.items() if f.overall.rows >= _FEW}
    if far:
        parts = [
            f"it claims {_whole(f.overall.says)} % and is right {_range(f.overall.right)}"
            + (f" ({name})" if len(far) > 1 else "")
            for name, f in far.items()
        ]
        sentence += f"; out of domain {', '.join(parts)}"
    caveats = []
    if main.aside:
        caveats.append("Judged on dev rows, which chose the epoch and the temperature: this flatters. Give --test.")
    few = [one.title for one in judged if len(one.labels) < 200 and (one is main or not one.aside)]
    if few:
        caveats.append(f"Under 200 rows, calibration errors say little: {', '.join(few)}.")
    return Verdict(colour, tone, headline, knows, f"{sentence}.", tuple(caveats))


def _at_least_warn(colour: Colour) -> Colour:
    return "warn" if colour == "good" else colour


def _headline(right: str, found: Finding, tones: dict[Tone, str], *, of_the_time: bool = True) -> str:
    how = tones[found.tone]
    if found.slight:
        how = how.replace("over", "slightly over").replace("under", "slightly under")
    return f"{right} {_whole(found.right)} %{' of the time' if of_the_time else ''}, {how}"


def _where(found: Finding) -> str:
    """Return where on the scale most of the error is; nothing where no range of it has most."""
    if found.tone not in ("sure", "modest", "uneven"):
        return ""
    showing = {tenth: abs(found.errors[tenth]) for tenth, said in found.tenths.items() if said.shows(found.tone)}
    most = max(showing, key=lambda tenth: showing[tenth], default=None)
    if most is None:
        return ""
    said = found.tenths[most]
    share = said.rows / found.overall.rows
    all_of_it = sum(map(abs, found.errors.values()))
    # Where nearly all rows are is no range.
    if share > 0.8 or (found.tone != "uneven" and showing[most] < all_of_it / 2):
        return ""
    there = f"where it claims about {_whole(said.says)} % ({_whole(share)} % of the predictions)"
    if found.tone == "uneven":
        return f", but {there}, it is right {_range(said.right)}"
    return f"; most of the error is {there}: there it is right {_range(said.right)}"


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
