"""Recall and precision of rare classes, which an accuracy over all rows hides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["rare_classes"]

# A class is rare below a third of an equal share of the rows; or below a twentieth, where that is no half of one.
_THIRD, _HALF, _FEW = 1 / 3, 1 / 2, 0.05


def rare_classes(
    probs: NDArray[np.float64], labels: NDArray[np.int64], label_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows, recall and precision of each rare class that has rows, the one found least often first.

    The precision of a class that is never predicted is None. Choices are no classes: without names there are none.
    """
    if not label_names:
        return []
    classes = len(label_names)
    rows = np.bincount(labels, minlength=classes)
    predicted = probs.argmax(axis=1)
    said = np.bincount(predicted, minlength=classes)
    right = np.bincount(labels[predicted == labels], minlength=classes)
    share = rows / max(1, len(labels))
    rare = (share < max(_THIRD / classes, min(_FEW, _HALF / classes))) & (rows > 0)
    found = [
        {
            "label": label_names[k],
            "rows": int(rows[k]),
            "recall": float(right[k] / rows[k]),
            "precision": float(right[k] / said[k]) if said[k] else None,
        }
        for k in np.flatnonzero(rare).tolist()
    ]
    return sorted(found, key=lambda one: (one["recall"], one["rows"]))
