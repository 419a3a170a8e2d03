"""The verdict in one sentence."""

import numpy as np
import pytest

from calmix.report.runs import Judged
from calmix.report.verdict import find, prepare_verdict


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
    assert found.low <= found.gap <= found.high
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


def test_a_domain_that_never_says_so_is_left_out_of_the_sentence() -> None:
    verdict = prepare_verdict([judged(0.95, 0.95), judged(0.55, 0.55, name="ood-far")])
    assert "out of domain" not in verdict.sentence


def test_dev_and_few_rows_are_said() -> None:
    verdict = prepare_verdict([judged(0.9, 0.9, 100, "dev")])
    assert "chose the epoch" in verdict.caveats[0]
    assert verdict.caveats[1] == "Under 200 rows, calibration errors say little: dev."


def test_one_row_is_no_crash() -> None:
    assert prepare_verdict([judged(1.0, 1.0, 1)]).tone == "unknown"
