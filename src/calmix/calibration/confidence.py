"""From class probabilities to one confidence a row, and whether it was deserved."""

from collections.abc import Iterator

import torch
from torch import Tensor

from calmix.calibration.checks import Array, Chunk, checked_chunks
from calmix.errors import InputError

__all__ = ["confidences", "stream"]


def stream(probs: Array, labels: Array, positive_class: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Confidence [m] in the input's precision and hit [m] as bool, a checked chunk of rows at a time.

    Top label (`positive_class=None`): the largest probability, and whether its class (the first one among
    equals) is the label. Positive class: that class's probability, and whether it is the label.
    """
    for chunk in checked_chunks(probs, labels):
        if positive_class is None:
            yield _top(chunk)
            continue
        classes = chunk.probs.shape[1]
        if not 0 <= positive_class < classes:
            raise InputError(f"positive_class is {positive_class}; it must lie in 0 … {classes - 1}")
        yield chunk.probs[:, positive_class], chunk.labels == positive_class


def confidences(probs: Array, labels: Array, positive_class: int | None = None) -> tuple[Tensor, Tensor]:
    """Confidence [n] in float64 and hit [n] as bool for all rows."""
    parts = list(stream(probs, labels, positive_class))
    return torch.cat([c for c, _ in parts]).double(), torch.cat([h for _, h in parts])


def _top(chunk: Chunk) -> tuple[Tensor, Tensor]:
    p, y = chunk.probs, chunk.labels
    if p.shape[1] <= 8:
        # Reducing a short last dimension is slow; comparing whole columns is not.
        top, winner = p[:, 0].clone(), torch.zeros(len(p), dtype=torch.uint8, device=p.device)
        for index, column in enumerate(p.unbind(1)[1:], start=1):
            winner.masked_fill_(column > top, index)
            torch.maximum(top, column, out=top)
        return top, winner == y.to(torch.uint8)
    if p.device.type != "cpu":
        top, winner = p.max(1)
        return top, winner == y
    # Finding the largest is vectorised, finding where it is is not: so ask whether the label has it. Above
    # one half no other class can have it too; below, the first of equals wins, where the answer is open.
    top = p.amax(1)
    hit = p.gather(1, y[:, None])[:, 0] == top
    rows = (hit & (top <= 0.51)).nonzero()[:, 0]
    if len(rows):
        hit[rows] = p[rows].argmax(1) == y[rows]
    return top, hit
