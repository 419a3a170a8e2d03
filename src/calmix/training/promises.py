"""What rows kept for a guarantee can promise: said before training, and in figures after it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.calibration.selective import SelectiveThreshold, best_within_reach, highest_promise, rows_needed
from calmix.data import Examples
from calmix.data.origin import shown

__all__ = ["promise_figures", "promise_notes"]

# What can be promised instead of what was asked for is one of these.
_LEVELS = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
# An accuracy that nobody would ask for.
_POOR = 0.5


def promise_notes(guard: Examples | None, accuracy: float | None) -> list[str]:
    """Return what is known of a guarantee before anything is trained: that it cannot be given, or says nothing."""
    if guard is None or accuracy is None:
        return []
    notes, asked = [], f"{100 * accuracy:.4g}%"
    rows, needed, reach = len(guard), rows_needed(accuracy), best_within_reach(len(guard))
    if rows < needed:
        less = f", or ask for at most {reach:.0%}" if reach > _POOR else ""
        notes.append(
            f"guarantee: {asked} can never be promised from {rows} held-out rows: it takes at least {needed:,}, all "
            f"predicted correctly (more if any are wrong); give {2 * needed:,} dev rows or more, half of which are "
            f"kept for it{less}"
        )
    label, share = _constant(guard.labels, guard.label_names)
    if label is not None and share >= accuracy:
        notes.append(
            f"guarantee: {asked} is kept by always answering {shown(label)}, the label of {share:.0%} of the held-out "
            "rows: such a promise says nothing; ask for more"
        )
    return notes


def promise_figures(
    threshold: SelectiveThreshold,
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    label_names: tuple[str, ...],
) -> dict[str, Any]:
    """Return what goes with a threshold that was asked for: the rows it had and needs, and what else can be promised.

    `constant` is the label that is right most often if it is always answered, and how often. Where what was asked for
    cannot be promised, or that label alone keeps it, `possible` is the highest of some round levels that can be, and
    that it does not keep.
    """
    label, share = _constant(labels, label_names)
    empty = label is not None and share >= threshold.accuracy
    possible = None
    if empty or threshold.threshold is None:
        below = 1.0 if empty else threshold.accuracy
        levels = [level for level in _LEVELS if share < level < below]
        possible = highest_promise(probs, labels, levels, error=threshold.error) if levels else None
    return {
        "rows": len(labels),
        "needed": rows_needed(threshold.accuracy, error=threshold.error),
        "constant": None if label is None else {"label": label, "accuracy": share},
        "possible": None if possible is None else possible.to_json(),
    }


def _constant(labels: NDArray[np.int64], label_names: tuple[str, ...]) -> tuple[str | None, float]:
    """Return the commonest label and its share of the rows; of multiple choice there is none."""
    if not label_names or not len(labels):
        return None, 0.0
    counts = np.bincount(labels, minlength=len(label_names))
    return label_names[int(counts.argmax())], float(counts.max() / len(labels))
