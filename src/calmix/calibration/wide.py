"""Many classes on a CPU: the largest of each row, found by several threads that read the input once from memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.calibration.checks import FEW, complain, tolerance

__all__ = ["is_wide", "tops"]

# Elements a thread works on at a time: both passes over them after the first find them in its cache.
_BLOCK = 1 << 19
# Rows handed over at a time, at most.
_SPAN = 1 << 19
# From so many elements on, threads are worth starting.
_WORTH = 1 << 22
_KINDS = (torch.float32, torch.float64)


def is_wide(p: Tensor) -> bool:
    """Whether `tops` is for this input."""
    return (
        p.device.type == "cpu" and p.dtype in _KINDS and p.shape[1] > FEW and p.stride(1) == 1 and p.numel() >= _WORTH
    )


def tops(p: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Confidence [m] and hit [m] of the top label, some checked rows at a time; see `confidence.stream`.

    torch would start and end its own threads for every pass over every chunk, which costs more than the pass.
    """
    threads = torch.get_num_threads()
    rows = max(1, _BLOCK // p.shape[1])
    span = rows * max(1, min(8 * threads, _SPAN // rows))
    values, labels = p.numpy(), y.long().numpy()
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(values), span):
            stop = min(start + span, len(values))
            top, hit = np.empty(stop - start, values.dtype), np.empty(stop - start, np.bool_)
            work = partial(_fill, values[start:stop], labels[start:stop], top, hit, rows, start)
            for _ in pool.map(work, range(0, stop - start, rows)):
                pass
            yield torch.from_numpy(top), torch.from_numpy(hit)


def _fill(
    values: NDArray[Any], labels: NDArray[np.int64], top: NDArray[Any], hit: NDArray[np.bool_], rows: int, before: int,
    start: int,
) -> None:  # fmt: skip
    """Fill in `top` and `hit` from row `start` on; row 0 is row `before` of the whole."""
    here = slice(start, start + rows)
    block, wanted = values[here], labels[here]
    if _is_plain(block, wanted, top[here]):
        most = top[here]
    else:
        complain(before + start, torch.from_numpy(block), torch.from_numpy(wanted))
        most = block.max(1)  # a negative zero, or a sum at the very edge: nothing is wrong with it
        top[here] = most
    hits = block[np.arange(len(block)), wanted] == most
    # Above one half no other class can be as large; below, the first of equals wins.
    doubtful = np.flatnonzero(hits & (most <= 0.51))
    if len(doubtful):
        hits[doubtful] = block[doubtful].argmax(1) == wanted[doubtful]
    hit[here] = hits


def _is_plain(block: NDArray[Any], wanted: NDArray[np.int64], top: NDArray[Any]) -> bool:
    """Write the largest of each row to `top`; return whether all rows are certainly distributions, labels classes.

    Read as whole numbers, floats that are not negative keep their order, and negative ones and NaN come after all
    of them: so the largest also tells whether there is one of these.
    """
    bits, margin = block.view(f"u{block.itemsize}"), tolerance(torch.from_numpy(block))
    np.max(bits, axis=1, out=top.view(bits.dtype))
    most = block.dtype.type(1 + margin)
    if top.view(bits.dtype).max() > most.view(bits.dtype):
        return False
    totals = block.sum(1)
    in_range = wanted.min() >= 0 and wanted.max() < block.shape[1]
    return bool(in_range and totals.min() >= 1 - margin and totals.max() <= most)
