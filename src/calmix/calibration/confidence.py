"""From class probabilities to one confidence a row, and whether it was deserved."""

from collections.abc import Iterator

import torch
from torch import Tensor

from calmix.calibration.checks import FEW, Array, Chunk, checked_chunks, class_index

__all__ = ["confidences", "first_largest", "stream"]


def stream(probs: Array, labels: Array, positive_class: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Confidence [m] in the input's precision and hit [m] as bool, a checked chunk of rows at a time.

    Top label (`positive_class=None`): the largest probability, and whether its class (the first one among
    equals) is the label. Positive class: that class's probability, and whether it is the label.
    """
    for chunk in checked_chunks(probs, labels):
        if positive_class is None:
            yield _top(chunk)
            continue
        index = class_index(positive_class, chunk.probs.shape[1])
        yield chunk.probs[:, index], chunk.labels == index


def confidences(probs: Array, labels: Array, positive_class: int | None = None) -> tuple[Tensor, Tensor]:
    """Confidence [n] in float64 and hit [n] as bool for all rows."""
    parts = [(c.to(torch.float64, copy=True), h) for c, h in stream(probs, labels, positive_class)]
    return torch.cat([c for c, _ in parts]), torch.cat([h for _, h in parts])


def first_largest(p: Tensor) -> Tensor:
    """The first of the largest classes of each row."""
    if p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(p.numpy().argmax(1))  # vectorised, which torch's is not
    return p.argmax(1)


def _top(chunk: Chunk) -> tuple[Tensor, Tensor]:
    p, y = chunk.probs, chunk.labels
    if p.shape[1] <= FEW:
        top, label = p[:, 0].clone(), y.to(torch.uint8)
        hit = label == 0
        for index, column in enumerate(p.unbind(1)[1:], start=1):
            # Where this class beats all before it, the row is a hit if it is the label: hit = better ? … : hit
            hit ^= (column > top) & (hit ^ (label == index))
            torch.maximum(top, column, out=top)
        return top, hit
    if p.device.type != "cpu":
        top, winner = p.max(1)
        return top, winner == y
    # Finding the largest is fast, finding where it is is not: so ask whether the label has it. Above one half
    # no other class can have it too; below, the first of equals wins, and is looked up where that is open.
    top = p.amax(1)
    hit = p.gather(1, y[:, None])[:, 0] == top
    rows = (hit & (top <= 0.51)).nonzero()[:, 0]
    if 8 * len(rows) > len(p):
        hit = first_largest(p) == y
    elif len(rows):
        hit[rows] = first_largest(p.index_select(0, rows)) == y[rows]
    return top, hit
