"""Label issues: which labels look wrong, ranked, from one training run."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.dynamics.values import Dynamics

__all__ = ["LabelIssues", "label_issues"]

# How far from a constant answer to a perfect one a run must have come before it may doubt a label: in labels that it
# got right at its last look, and in the probability that it gave them there.
_RIGHT, _SURE = 0.2, 0.1
# Of fewer samples neither can be told.
_FEW = 30


@dataclass(frozen=True, eq=False)
class LabelIssues:
    """How suspicious each label is; arrays are in the order of the samples.

    A sample that was never observed, or has no other class, is not judged: its score is NaN, it comes last
    and is never flagged. A label that was given probability 0 comes first.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    score: NDArray[np.float64]
    """0 for a label that was never in doubt, towards 1 for one the model kept contradicting."""
    suggested: NDArray[np.int64]
    """The label the model would have given: the other class it leant to most; -1 if not judged."""
    sureness: NDArray[np.float64]
    """Mean probability of the most probable class other than the given label."""
    flagged: NDArray[np.bool_]
    """Whether the sample passes the automatic cut."""
    order: NDArray[np.int64]
    """All rows, the most suspicious first."""
    label_names: tuple[str, ...] = ()
    withheld: str = ""
    """Why no sample is flagged: the run knew its training data too little to doubt a label; empty if it may."""

    def __len__(self) -> int:
        return len(self.ids)

    def to_table(self, *, flagged_only: bool = False) -> pa.Table:
        """Return a table of ranked suspects: rank, id, label, suggested, score, sureness, flagged."""
        rows = self.order[self.flagged[self.order]] if flagged_only else self.order
        score, sureness = self.score[rows], self.sureness[rows]
        return pa.table(
            {
                "rank": pa.array(np.arange(1, len(rows) + 1), pa.int64()),
                "id": pa.array([self.ids[row] for row in rows], pa.string()),
                "label": self._named(self.labels[rows]),
                "suggested": self._named(self.suggested[rows]),
                "score": pa.array(score, pa.float64(), mask=np.isnan(score)),
                "sureness": pa.array(sureness, pa.float64(), mask=np.isnan(sureness)),
                "flagged": pa.array(self.flagged[rows], pa.bool_()),
            }
        )

    def _named(self, codes: NDArray[np.int64]) -> pa.Array:
        index = pa.array(codes, pa.int64(), mask=codes < 0)
        return pa.array(self.label_names, pa.string()).take(index) if self.label_names else index


def label_issues(dynamics: Dynamics) -> LabelIssues:
    """Return how suspicious each label is, from the dynamics of one run.

    The score is 1 − exp(−L), where L is two parts of the loss at the last look and one part of the mean loss: one
    minus a weighted geometric mean of the given label's probability. The last look knows most. But a model that
    trained for long has learnt wrong labels by heart, and what it thought before then still shows them. Where a head
    was fitted before (`Dynamics.with_head`), its loss makes a third of L: it has learnt no label that it judges, and
    finds what people got wrong.

    A sample is flagged when, on average over the run, another class was more probable than the given label and
    had a probability of at least one half; or, where even the samples that carry that class's label are given
    less, at least their mean confidence.

    None is flagged where the run knew its training data too little to doubt a label. At its last look at each sample
    it must have got right at least a fifth of what the commonest label alone gets wrong, and have given the labels a
    probability at least a tenth of the way from what their shares would give them to certainty. A network that was
    trained a little is right more often than it is sure: it takes the likeliest of many classes, by a hair, and every
    sample that it has not learnt yet would be a suspect.
    """
    judged = (dynamics.observations > 0) & (dynamics.rival >= 0)
    area = _area(dynamics)
    score = np.where(judged, -np.expm1(-area), np.nan)

    flagged = np.zeros(len(dynamics), dtype=np.bool_)
    withheld = _too_little(dynamics)
    doubted = judged & (dynamics.rival_confidence > dynamics.confidence)
    suspects = np.flatnonzero(doubted & (not withheld))
    needed = np.minimum(0.5, _class_confidence(dynamics)[dynamics.rival[suspects]])
    flagged[suspects] = dynamics.rival_confidence[suspects] >= needed
    return LabelIssues(
        ids=dynamics.ids,
        labels=dynamics.labels,
        score=score,
        suggested=np.where(judged, dynamics.rival, -1),
        sureness=np.where(judged, dynamics.rival_confidence, np.nan),
        flagged=flagged,
        # NaN sorts last; ties in the order of the rows.
        order=np.argsort(-np.where(judged, area, -np.inf), kind="stable"),
        label_names=dynamics.label_names,
        withheld=withheld,
    )


def _area(dynamics: Dynamics) -> NDArray[np.float64]:
    """Return how much was lost on each label, by all that looked at it."""
    trained = (2 * dynamics.last_loss + dynamics.loss) / 3
    if dynamics.head_loss is None:
        return trained
    return np.where(np.isnan(dynamics.head_loss), trained, (2 * trained + dynamics.head_loss) / 3)


def _too_little(dynamics: Dynamics) -> str:
    """Return why a run knew its training data too little to doubt a label; nothing where it knew enough."""
    seen = (dynamics.observations > 0) & (dynamics.labels >= 0)
    shares = np.bincount(dynamics.labels[seen]) / max(1, seen.sum())
    if seen.sum() < _FEW or (shares > 0).sum() < 2:
        return ""
    usual, constant = float(shares.max()), float(np.square(shares).sum())
    right = float((dynamics.last_prediction == dynamics.labels)[seen].mean())
    if right < usual + _RIGHT * (1 - usual):
        return (
            f"the model had hardly learnt anything when it last saw each sample ({right:.0%} of the training labels "
            f"right, the most frequent alone makes {usual:.0%})"
        )
    sure = float(np.exp(-dynamics.last_loss[seen]).mean())
    if sure < constant + _SURE * (1 - constant):
        return (
            "the model was still sure of nothing when it last saw each sample (it gave the training labels a "
            f"probability of {sure:.2g} on average, their shares alone make {constant:.2g})"
        )
    return ""


def _class_confidence(dynamics: Dynamics) -> NDArray[np.float64]:
    """The mean confidence of the samples of each class; 1 for a class without samples."""
    seen = (dynamics.observations > 0) & (dynamics.labels >= 0)
    counts = np.bincount(dynamics.labels[seen], minlength=dynamics.n_classes)
    sums = np.bincount(dynamics.labels[seen], weights=dynamics.confidence[seen], minlength=dynamics.n_classes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)
