"""The verdict in one sentence."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.report.knowledge import Course
from calmix.report.runs import Judged
from calmix.report.verdict import find, prepare_verdict


def judged(confidence: float | np.ndarray, accuracy: float, n: int = 2000, name: str = "test") -> Judged:
    """Predictions of two equally common classes that say `confidence` and are right `accuracy` of the time."""
    sure = np.broadcast_to(np.asarray(confidence, dtype=float), n)
    predicted = np.arange(n) % 2
    return with_hits(
        Judged(
            name=name,
            title=name,
            outside=name.startswith("ood-"),
            figures={"after": {"debiased_ece": float(np.abs(sure.mean() - accuracy))}},
            probs={"after": np.where(predicted[:, None] == [0, 1], sure[:, None], 1 - sure[:, None])},
            labels=predicted,
            classes=("a", "b"),
            ids=(),
        ),
        np.arange(n) < round(accuracy * n),
    )


def with_hits(one: Judged, hit: np.ndarray) -> Judged:
    """The same predictions, right where `hit` says so."""
    predicted = np.arange(len(hit)) % 2
    return replace(one, labels=np.where(hit, predicted, 1 - predicted))


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


def test_the_headline_speaks_of_accuracy_before_it_speaks_of_confidence() -> None:
    verdict = prepare_verdict([judged(0.9, 0.9, 4000)])
    assert verdict.headline == "Right 90 % of the time, and its confidence can be trusted"
    assert verdict.knows.sentence == "Always answering the commonest class would be right 50 % of the time."
    assert verdict.sentence == "On average it claims 90 % and is right 89–91 % of the time."
    assert verdict.text == f"{verdict.headline}. {verdict.knows.sentence} {verdict.sentence}"
    assert verdict.colour == "good"
    assert verdict.caveats == ()


def test_out_of_domain_has_its_accuracy_and_its_own_word() -> None:
    verdict = prepare_verdict([judged(0.9, 0.9, 4000), judged(0.9, 0.75, 4000, "ood-far")])
    assert verdict.headline.endswith("can be trusted; out of domain right 75 %, and overconfident")
    assert verdict.sentence.endswith("of the time; out of domain it claims 90 % and is right 74–76 %.")
    assert (verdict.tone, verdict.colour) == ("sure", "bad")


def test_two_domains_are_named() -> None:
    sets = [judged(0.9, 0.9), judged(0.9, 0.8, name="ood-a"), judged(0.9, 0.7, name="ood-b")]
    told = prepare_verdict(sets).sentence
    assert told.endswith(
        "out of domain it claims 90 % and is right 78–82 % (a), it claims 90 % and is right 68–72 % (b)."
    )


def test_a_gap_of_a_few_points_is_slight_and_not_red() -> None:
    slight = prepare_verdict([judged(0.94, 0.90, 4000)])
    assert slight.headline == "Right 90 % of the time, but slightly overconfident"
    assert (slight.tone, slight.colour) == ("sure", "warn")
    assert prepare_verdict([judged(0.86, 0.90, 4000)]).headline.endswith("slightly underconfident")
    assert prepare_verdict([judged(0.97, 0.90, 4000)]).headline.endswith("but overconfident")


def test_the_sentence_says_where_most_of_the_error_is() -> None:
    # Most rows are where it is honest; what makes it underconfident is elsewhere.
    one = judged(np.repeat([0.97, 0.62], [1200, 800]), 0.9, 2000)
    hit = np.zeros(2000, dtype=bool)
    hit[: round(0.97 * 1200)] = True
    hit[1200 : 1200 + round(0.8 * 800)] = True
    verdict = prepare_verdict([with_hits(one, hit)])
    assert verdict.headline == "Right 90 % of the time, but underconfident"
    assert verdict.sentence == (
        "On average it claims 83 % and is right 89–92 % of the time; most of the error is where it claims about 62 % "
        "(40 % of the predictions): there it is right 77–83 %."
    )


def test_errors_that_cancel_are_shown_where_they_do_not() -> None:
    one = judged(np.repeat([0.95, 0.55], 2500), 0.75, 5000)
    one.figures["after"]["debiased_ece"] = 0.2
    rng = np.random.default_rng(0)
    verdict = prepare_verdict([with_hits(one, rng.permutation(5000) < 3750)])
    assert verdict.tone == "uneven"
    assert re.search(r"of the time, but where it claims about (95|55) % \(50 % of the predictions\)", verdict.sentence)


def test_the_gravest_domain_makes_the_headline() -> None:
    sets = [judged(0.9, 0.9), judged(0.9, 0.8, 25, name="ood-few"), judged(0.9, 0.84, 4000, name="ood-many")]
    assert prepare_verdict(sets).headline.endswith("out of domain right 84 %, and overconfident")


def test_of_what_has_learnt_nothing_the_headline_is_that() -> None:
    verdict = prepare_verdict([judged(0.51, 0.51, 4000), judged(0.9, 0.6, name="ood-far")])
    assert verdict.headline == "It has hardly learnt anything"
    assert verdict.knows.sentence.startswith("It is right 51 % of the time (49–53 %); always answering")
    assert verdict.colour == "bad"


def test_of_a_training_that_broke_off_the_headline_is_that() -> None:
    history = [{"epoch": 1, "dev": {"nll-ts": 2.0}}, {"epoch": 2, "dev": {"nll-ts": 1.5}}]
    verdict = prepare_verdict([judged(0.8, 0.8, 4000)], Course(history, 2, 0.05))
    assert verdict.headline == "It was still learning when its training ended"
    assert "right 80 % of the time" in verdict.knows.sentence
    assert verdict.colour == "warn"


SENTENCE = re.compile(r"On average it claims (\d+) % and is right (\d+)(?:–(\d+))? % of the time")
OUTSIDE = re.compile(r"out of domain it claims (\d+) % and is right (\d+)(?:–(\d+))? %\.$")


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
        return with_hits(judged(sure, 1.0, n, name), rng.random(n) < np.clip(sure - shift + wobble, 0, 1))

    sets = [drawn(bent, "test"), drawn(bent_outside, "ood-far")]
    inside, outside = (find(one) for one in sets)
    verdict = prepare_verdict(sets)
    if verdict.knows.state == "learnt":
        slightly = "slightly " if inside.slight else ""
        assert re.match(rf"Right \d+ % of the time, .*{slightly}", verdict.headline)
        assert WORDS[inside.tone] in verdict.headline.split(";")[0]
        same = (outside.tone, outside.slight) == (inside.tone, inside.slight)
        assert ("; out of domain" in verdict.headline) != same
    told = SENTENCE.match(verdict.sentence)
    assert told
    says, low = int(told[1]), int(told[2])
    assert agree(inside.tone, says, low, int(told[3] or low))
    if n < 20:
        assert "out of domain" not in verdict.sentence
    else:
        own = OUTSIDE.search(verdict.sentence)
        assert own
        assert agree(outside.tone, int(own[1]), int(own[2]), int(own[3] or own[2]))


WORDS = {
    "honest": "can be trusted",
    "uneven": "not at every level",
    "sure": "overconfident",
    "modest": "underconfident",
    "unknown": "too few rows to tell",
}


def test_dev_and_few_rows_are_said() -> None:
    verdict = prepare_verdict([judged(0.9, 0.9, 100, "dev")])
    assert "chose the epoch" in verdict.caveats[0]
    assert verdict.caveats[1] == "Under 200 rows, calibration errors say little: dev."


def test_one_row_is_no_crash() -> None:
    assert prepare_verdict([judged(1.0, 1.0, 1)]).tone == "unknown"
