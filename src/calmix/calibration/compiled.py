"""Rows counted by bin in one pass over the data, where numba is installed: `pip install 'calmix[fast]'`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import tolerance

__all__ = ["compiled_sums"]

# From so many elements on it is used: loading numba takes half a second, once a process.
_WORTH = 1 << 23
# Elements that a thread takes at a time.
_SPAN = 1 << 20
_BITS = {torch.float32: np.int32, torch.float64: np.int64}


def compiled_sums(p: Tensor, y: Tensor, bins: int, positive_class: int | None) -> NDArray[np.float64] | None:
    """Rows, confidence and hits by bin, [3, bins]; None if `confidence.stream` is to be asked instead.

    That is so without numba, for what is small or not laid out row by row in this machine's memory, and as soon
    as one row may be wrong: then `stream` decides, and its error names the row.
    """
    if p.device.type != "cpu" or p.dtype not in _BITS or not p.is_contiguous() or p.numel() < _WORTH:
        return None
    count = _compiled()
    if count is None:
        return None
    probs = p.numpy()
    bits = probs.view(_BITS[p.dtype])
    edges, margin = np.arange(bins + 1) / bins, tolerance(p)
    positive = -1 if positive_class is None else positive_class
    rows = max(1, _SPAN // p.shape[1])

    def part(start: int) -> NDArray[np.float64] | None:
        span, sums = slice(start, start + rows), np.zeros((3, bins))
        labels = y[span].long().contiguous().numpy()
        return sums if count(probs[span], bits[span], labels, positive, margin, edges, sums) else None

    total, workers, starts = np.zeros((3, bins)), torch.get_num_threads(), range(0, len(p), rows)
    # Threads of our own: numba's would not outlive a fork of this process. Spans do not depend on their number,
    # so neither does the result.
    with ThreadPoolExecutor(workers) as threads:
        for sums in threads.map(part, starts) if workers > 1 else map(part, starts):
            if sums is None:
                return None
            total += sums
    return total


@cache
def _compiled() -> Callable[..., bool] | None:
    """`_count` as machine code, kept on disk for later processes; None where there is no numba."""
    try:
        import numba
    except ImportError:  # also numba's answer to a version of numpy it does not know
        return None
    # The sum of a row, which is only compared with 1, may be taken in any order: so it is several at once.
    how = {"nogil": True, "fastmath": {"reassoc"}}
    try:
        return numba.njit(_count, cache=True, **how)  # type: ignore[no-any-return]
    except RuntimeError:  # no place that can be written to
        return numba.njit(_count, **how)  # type: ignore[no-any-return]


def _count(
    p: NDArray[Any],
    bits: NDArray[Any],
    y: NDArray[np.int64],
    positive: int,
    margin: float,
    edges: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> bool:
    """Add the rows to `sums` and return True, or False once a row may be none.

    `bits` are the same numbers as integers, which have the same order where no number is negative: comparing them
    needs no care for NaN, and is as fast as reading them.
    """
    classes, bins = p.shape[1], len(edges) - 1
    word = np.empty(1, bits.dtype)
    number = word.view(p.dtype)
    for row in range(len(p)):
        total, largest, signs = 0.0, bits[row, 0], bits[row, 0]
        for k in range(classes):
            total += p[row, k]
            largest = max(largest, bits[row, k])
            signs |= bits[row, k]
        label = y[row]
        # Written so that a NaN, which compares false with everything, fails; the sign of -0.0 does as well.
        if not (abs(total - 1) <= margin and signs >= 0 and 0 <= label < classes):
            return False
        if positive >= 0:
            confidence, hit = float(p[row, positive]), label == positive
        else:
            word[0] = largest
            confidence, hit = float(number[0]), bits[row, label] == largest
            if confidence <= 0.51 and hit:  # above, no other class can be as large
                earlier = 0
                for k in range(label):  # to the end: a loop that may leave early compares one by one
                    earlier += bits[row, k] == largest
                hit = earlier == 0
        where = min(max(int(np.ceil(confidence * bins)) - 1, 0), bins - 1)
        # The product may have rounded to the other side of an edge.
        if where > 0 and confidence <= edges[where]:
            where -= 1
        elif where < bins - 1 and confidence > edges[where + 1]:
            where += 1
        sums[0, where] += 1
        sums[1, where] += confidence
        sums[2, where] += hit
    return True
