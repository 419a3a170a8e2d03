"""The verdict in one sentence."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.report.runs import Judged
from calmix.report.verdict import _HEADLINES, _OUTSIDE, find, prepare_verdict


def judged(confidence: float | np.ndarray, accuracy: float, n: int = 2000, name: str = "test") -> Judged:
    """Predictions of two classes that say `confidence` and are right `accuracy` of the time."""
    sure = np.broadcast_to(np.asarray(confidence, dtype=float), n)
    labels = (np.arange(n) >= round(accuracy * n)).astype(np.int64)
    return Judged(
        name=name,
        title=name,
        outside=name.startswith("ood-"),
        figures={"after": {"debiased_ece": float(np.abs(sure.mean() - accuracy))}},
        probs={"after": np.stack([sure, 1 - sure], axis=1)},
        labels=labels,
        classes=("a", "b"),
        ids=(),
    )


@pytest.mark.parametrize(
    ("confidence", "accuracy", "n", "tone"),
    [
        (0.9, 0.9, 5000, "honest"),
        (0.9, 0.75, 5000, "sure"),
        (0.7, 0.9, 5000, "modest"),
        (0.9, 0.9, 30, "unknown"),
    ],
)
def test_the_tone_is_that_of_the_whole(confidence: float, accuracy: float, n: int, tone: str) -> None:
    found = find(judged(confidence, accuracy, n))
    assert found.tone == tone
    assert found.overall.right[0] <= accuracy <= found.overall.right[1]
    assert found.gap == pytest.approx(confidence - accuracy, abs=0.02)


def test_errors_that_cancel_are_not_called_honest() -> None:
    one = judged(np.repeat([0.95, 0.55], 2500), 0.75, 5000)
    one.figures["after"]["debiased_ece"] = 0.2
    assert find(one).tone == "uneven"


def test_the_sentence_says_how_often_it_is_right_in_and_out_of_domain() -> None:
    verdict = prepare_verdict([judged(0.9, 0.9, 4000), judged(0.9, 0.75, 4000, "ood-far")])
    assert verdict.sentence == "When it says 90 %, it is right 89–91 % of the time; out of domain 74–76 %."
    assert verdict.headline == "Its confidence can be trusted; out of domain it is too sure of itself"
    assert verdict.tone == "sure"
    assert verdict.caveats == ()


def test_two_domains_are_named() -> None:
    sets = [judged(0.9, 0.9), judged(0.9, 0.8, name="ood-a"), judged(0.9, 0.7, name="ood-b")]
    assert prepare_verdict(sets).sentence.endswith("out of domain 78–82 % (a), 68–72 % (b).")


def test_a_domain_that_never_says_so_is_told_by_its_average() -> None:
    verdict = prepare_verdict([judged(0.95, 0.95), judged(0.55, 0.55, name="ood-far")])
    assert verdict.sentence.endswith("; out of domain it says 55 % on average and is right 53–57 %.")


def test_numbers_that_would_contradict_the_headline_give_way_to_those_that_show_it() -> None:
    # Most rows are where it is honest; what makes it too modest is elsewhere.
    sure = np.repeat([0.97, 0.62], [1200, 800])
    one = judged(sure, 0.9, 2000)
    labels = np.ones(2000, dtype=np.int64)
    labels[: round(0.97 * 1200)] = 0
    labels[1200 : 1200 + round(0.8 * 800)] = 0
    verdict = prepare_verdict([replace(one, labels=labels)])
    assert verdict.headline == "It is right more often than it says"
    assert verdict.sentence == "When it says 62 %, it is right 77–83 % of the time."


def test_the_gravest_domain_makes_the_headline() -> None:
    sets = [judged(0.9, 0.9), judged(0.9, 0.6, 25, name="ood-few"), judged(0.9, 0.84, 4000, name="ood-many")]
    assert prepare_verdict(sets).headline.endswith("out of domain it is too sure of itself")


SENTENCE = re.compile(r"(When|On average) it says (\d+) %, (?:it|and) is right (\d+)(?:–(\d+))? % of the time")
OWN = re.compile(r"out of domain it says (\d+) % on average and is right (\d+)(?:–(\d+))? %\.$")
SHORT = re.compile(r"out of domain (\d+)(?:–(\d+))? %\.$")


def agree(tone: str, says: int, low: int, high: int) -> bool:
    """Whether a reader would find the tone in the numbers."""
    return {
        "honest": low - 3 <= says <= high + 3,
        "sure": says > high,
        "modest": says < low,
        "unknown": low <= says <= high,
        "uneven": True,
    }[tone]


@given(
    seed=st.integers(0, 2**31),
    n=st.sampled_from([1, 2, 25, 60, 300, 1500]),
    bent=st.floats(-0.4, 0.4),
    bent_outside=st.floats(-0.4, 0.4),
    peak=st.floats(0.5, 12),
)
@settings(max_examples=300)
def test_headline_and_sentence_never_disagree(seed: int, n: int, bent: float, bent_outside: float, peak: float) -> None:
    rng = np.random.default_rng(seed)

    def drawn(shift: float, name: str) -> Judged:
        sure = 0.5 + 0.5 * rng.beta(peak, 2, n)
        wobble = rng.uniform(-0.2, 0.2) * np.sin(20 * sure)
        labels = (rng.random(n) > np.clip(sure - shift + wobble, 0, 1)).astype(np.int64)
        return replace(judged(sure, 1.0, n, name), labels=labels)

    sets = [drawn(bent, "test"), drawn(bent_outside, "ood-far")]
    inside, outside = (find(one).tone for one in sets)
    verdict = prepare_verdict(sets)
    assert verdict.headline.startswith(_HEADLINES[inside])
    assert (_OUTSIDE[outside] in verdict.headline) == (outside != inside)
    told = SENTENCE.match(verdict.sentence)
    assert told
    says, low = int(told[2]), int(told[3])
    assert agree(inside, says, low, int(told[4] or low))
    if n < 20:
        assert "out of domain" not in verdict.sentence
    elif own := OWN.search(verdict.sentence):
        assert agree(outside, int(own[1]), int(own[2]), int(own[3] or own[2]))
    else:
        short = SHORT.search(verdict.sentence)
        assert short
        assert agree(outside, says, int(short[1]), int(short[2] or short[1]))


def test_dev_and_few_rows_are_said() -> None:
    verdict = prepare_verdict([judged(0.9, 0.9, 100, "dev")])
    assert "chose the epoch" in verdict.caveats[0]
    assert verdict.caveats[1] == "Under 200 rows, calibration errors say little: dev."


def test_one_row_is_no_crash() -> None:
    assert prepare_verdict([judged(1.0, 1.0, 1)]).tone == "unknown"
