"""What the page of a map says first: how many labels look wrong, or why that cannot be told."""

from dataclasses import dataclass

import numpy as np

from calmix.dynamics import Dynamics, label_issues

__all__ = ["Suspects", "prepare_suspects"]


@dataclass(frozen=True)
class Suspects:
    """How many labels of a training set look wrong to the run that mapped it."""

    number: int
    withheld: bool
    """Whether the run knew its training data too little to doubt a label."""
    headline: str
    sentence: str


def prepare_suspects(dynamics: Dynamics) -> Suspects | None:
    """Return what to say of the labels; nothing of a map in which no sample was observed."""
    issues, seen = label_issues(dynamics), (dynamics.observations > 0) & (dynamics.labels >= 0)
    if not seen.any():
        return None
    number, total = int(issues.flagged.sum()), int(seen.sum())
    if issues.withheld:
        return Suspects(
            number=0,
            withheld=True,
            headline="Whether labels look wrong cannot be told yet",
            sentence=f"{issues.withheld[:1].upper()}{issues.withheld[1:]}. More --epochs, or a larger --lr, may help.",
        )
    right = float((dynamics.last_prediction == dynamics.labels)[seen].mean())
    usual = float(np.bincount(dynamics.labels[seen]).max() / total)
    knows = (
        f"At its last look the model was right on {100 * right:.0f} % of the training labels; the commonest label "
        f"alone makes {100 * usual:.0f} %."
    )
    if not number:
        return Suspects(0, False, f"None of {total:,} labels looks wrong", knows)
    looks = "looks" if number == 1 else "look"
    advice = "Read the suspects below, worst first, and mark each: keep, relabel or drop."
    return Suspects(number, False, f"{number:,} of {total:,} labels {looks} wrong", f"{advice} {knows}")
