"""Predictions as a table: one row per example, readable by anything."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data import Examples

__all__ = ["prediction_table"]


def prediction_table(
    examples: Examples,
    probs: NDArray[np.float64],
    *,
    label_names: tuple[str, ...],
    logits: NDArray[np.float32] | None = None,
) -> pa.Table:
    """Return id, gold label if known, predicted label, confidence, and one probability per class.

    Multiple choice has a list of probabilities instead, as long as the row has choices, and labels that are
    the choices' indices. `logits` adds the scores before any recalibration, for people who want to try their own.
    """
    winner = probs.argmax(axis=1)
    names = np.array(label_names or [str(i) for i in range(probs.shape[1])], dtype=object)
    columns: dict[str, pa.Array] = {"id": pa.array(examples.ids, pa.string())}
    if (examples.labels >= 0).all():
        columns["label"] = pa.array(names[examples.labels], pa.string())
    columns["predicted"] = pa.array(names[winner], pa.string())
    columns["confidence"] = pa.array(probs[np.arange(len(probs)), winner])
    counts = examples.choice_counts
    if counts is None:
        columns |= {f"p_{name}": pa.array(probs[:, k]) for k, name in enumerate(names)}
    else:
        columns["probs"] = pa.array([row[:count] for row, count in zip(probs, counts, strict=True)])
    if logits is not None:
        widths = counts if counts is not None else np.full(len(logits), logits.shape[1])
        columns["logits"] = pa.array([row[:width] for row, width in zip(logits, widths, strict=True)])
    return pa.table(columns)
