"""What every metric asks of its input, checked chunk by chunk so that no copy of the whole is made."""

import warnings
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calmix.errors import InputError

__all__ = [
    "FEW",
    "Array",
    "Chunk",
    "bin_count",
    "checked_chunks",
    "checked_labels",
    "checked_logits",
    "checked_probs",
    "class_index",
    "like",
    "pair",
    "tensor",
    "whole",
]

Array: TypeAlias = np.ndarray[Any, Any] | Tensor

# Elements per chunk: on a CPU small enough for the cache, elsewhere large enough to hide the launches.
_CPU_CHUNK = 1 << 21
_DEVICE_CHUNK = 1 << 22
# Up to this many classes a chunk is laid out by columns: whole columns are compared and added several times
# faster than short rows.
FEW = 8
# How far from 1 rows may sum that were rounded when they were written down.
_ROUNDED = 0.02
# Far below what a classifier says of anything, and far above the smallest number of float32.
_OF_PROBABILITIES = "for probabilities p, pass np.log(p.clip(1e-12))"


class Chunk(NamedTuple):
    """Rows `start` onwards: probabilities [m, K] and labels [m], or [m, K] where targets are soft."""

    start: int
    probs: Tensor
    labels: Tensor


def tensor(values: Array, name: str) -> Tensor:
    """`values` as a tensor that shares their memory where it can; gradients are left behind."""
    if values is None:
        raise InputError(f"{name} is None; it must hold numbers")
    if isinstance(values, Tensor):
        # float64 does not exist on Apple's GPU, and a metric summed in float32 is wrong past 10⁷ rows.
        return values.detach().cpu() if values.device.type == "mps" else values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} has dtype {array.dtype}; it must hold numbers")
    if array.dtype.itemsize > 8 or not array.dtype.isnative:
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()  # of one row, `ascontiguousarray` would keep the stride it has
    with warnings.catch_warnings():
        # A read-only array is fine: nothing here writes to its input.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array)


def whole(value: float, name: str) -> int:
    """`value` as an int, if it is a whole number; True and False are none."""
    whole_number = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    if whole_number and not isinstance(value, bool):
        return int(value)
    raise InputError(f"{name} is {value!r}; it must be a whole number")


def bin_count(bins: float) -> int:
    """`bins` as an int, if there can be so many."""
    if (count := whole(bins, "bins")) < 1:
        raise InputError(f"bins is {bins}; at least one is needed")
    return count


def class_index(value: float, classes: int) -> int:
    """`value` as the index of one of so many classes."""
    if not 0 <= (index := whole(value, "positive_class")) < classes:
        raise InputError(f"positive_class is {value}; it must lie in 0 … {classes - 1}")
    return index


def like(result: Tensor, source: Array) -> Array:
    """`result` as the caller's own kind of array: numpy for numpy, a tensor on its device for a tensor."""
    return result.to(source.device) if isinstance(source, Tensor) else result.cpu().numpy()


def pair(probs: Array, labels: Array, *, name: str = "probs", soft: bool = False) -> tuple[Tensor, Tensor]:
    """`probs` and `labels` as tensors on one device, their shapes and kinds checked (their values not)."""
    p, y = tensor(probs, name), tensor(labels, "labels")
    if p.ndim != 2 or p.shape[1] < 2:
        raise InputError(
            f"{name} has shape {tuple(p.shape)}; it must be [rows, classes] with at least two classes"
            " (for a binary model: one column for each class)"
        )
    if not p.dtype.is_floating_point:
        raise InputError(f"{name} has dtype {p.dtype}; it must be floating point")
    if p.shape[0] == 0:
        raise InputError(f"{name} is empty; there is nothing to measure")
    if y.shape[:1] != p.shape[:1]:
        raise InputError(f"{name} has {p.shape[0]} rows and labels has {y.shape[0] if y.ndim else 'none'}")
    if y.ndim == 2 and soft:
        if y.shape != p.shape or not y.dtype.is_floating_point:
            raise InputError(
                f"labels has shape {tuple(y.shape)} and dtype {y.dtype}; soft targets are floats of shape"
                f" {tuple(p.shape)}"
            )
    elif y.ndim != 1 or y.dtype.is_floating_point:
        raise InputError(f"labels has shape {tuple(y.shape)} and dtype {y.dtype}; it must be [rows] integers")
    return p, y.to(p.device)


def checked_chunks(probs: Array, labels: Array, *, soft: bool = False) -> Iterator[Chunk]:
    """The rows of `probs` and `labels` a chunk at a time, each chunk checked before it is handed over.

    A chunk is good until the next one is asked for, which may be written in the same place.

    A row of probabilities must hold no NaN and no negative number and sum to 1 (within 1e-3; 1e-2 for half
    precision); a label must be a class. The first row that does not is named in the `InputError`.
    """
    p, y = pair(probs, labels, soft=soft)
    few = p.shape[1] <= FEW
    # Short rows are copied, and as many confidences are worked on: 16 MiB must hold it all.
    width = 2 * FEW if few else p.shape[1]
    rows = max(1, (_CPU_CHUNK if p.device.type == "cpu" else _DEVICE_CHUNK) // width)
    room = p.new_empty(p.shape[1], min(rows, p.shape[0])) if few else None
    for start in range(0, p.shape[0], rows):
        chunk, wanted = p[start : start + rows], y[start : start + rows]
        if room is not None:
            chunk = _by_column(chunk, room[:, : len(chunk)])
        fine = normalised(chunk)
        if wanted.ndim == 2:
            fine = fine & normalised(wanted)
        else:
            wanted = wanted.long()
            low, high = torch.aminmax(wanted)
            fine = fine & (low >= 0) & (high < p.shape[1])
        if not bool(fine):
            _complain(start, chunk, wanted)
        yield Chunk(start, chunk, wanted)


def normalised(p: Tensor) -> Tensor:
    """Whether every row of `p` is a probability distribution, as a tensor of one bool on its device."""
    if p.shape[1] <= FEW:
        totals = p[:, 0] + p[:, 1]
        for column in p.unbind(1)[2:]:
            totals += column
    else:
        totals = p.sum(1)
    low, high = torch.aminmax(totals)
    margin = tolerance(p)
    # Written so that a NaN, which compares false with everything, fails.
    return (low >= 1 - margin) & (high <= 1 + margin) & (p.amin() >= 0)


def _by_column(p: Tensor, room: Tensor) -> Tensor:
    """`p`, copied to `room` [K, m]; one column at a time, which is faster than a transposed copy."""
    for column, values in zip(room, p.unbind(1), strict=True):
        column.copy_(values)
    return room.t()


def tolerance(p: Tensor) -> float:
    """How far from 1 a row of this precision may sum."""
    return 1e-3 if p.dtype in (torch.float32, torch.float64) else 1e-2


def _complain(start: int, p: Tensor, y: Tensor) -> None:
    """Raise the error for the first bad row of a chunk, if in float64 it has one."""
    _complain_probs("probs", start, p)
    if y.ndim == 2:
        _complain_probs("labels", start, y)
        return
    bad = ((y < 0) | (y >= p.shape[1])).nonzero()
    if not len(bad):
        return
    row = int(bad[0, 0])
    raise InputError(f"labels[{start + row}] is {int(y[row])}; labels must lie in 0 … {p.shape[1] - 1}")


def _complain_probs(name: str, start: int, p: Tensor) -> None:
    margin, p = tolerance(p), p.double()
    bad = (p.isnan() | (p < 0)).any(1) | ~((p.sum(1) - 1).abs() <= margin)
    if not bool(bad.any()):
        return
    row = int(bad.nonzero()[0, 0])
    where = f"{name}[{start + row}]"
    if bool(p[row].isnan().any()):
        raise InputError(f"{where} holds NaN; look for the inputs that produced it")
    if bool((p[row] < 0).any()):
        raise InputError(
            f"{where} holds {float(p[row].min()):g}, a negative number; pass probabilities (softmax of the logits)"
        )
    raise InputError(f"{where} sums to {float(p[row].sum()):.6g}, not 1; pass probabilities (softmax of the logits)")


def checked_probs(probs: Array) -> Iterator[Tensor]:
    """The rows of `probs` a chunk at a time, checked as in `checked_chunks`, where there are no labels."""
    p = tensor(probs, "probs")
    return (chunk.probs for chunk in checked_chunks(p, _no_labels(p)))


def checked_logits(logits: Array) -> Tensor:
    """`logits` as float64, checked.

    A logit may be -inf, for a choice that does not exist; NaN, +inf and rows of nothing but -inf are errors.
    """
    z = tensor(logits, "logits")
    return _finite(pair(z, _no_labels(z), name="logits")[0])


def checked_labels(logits: Array, labels: Array) -> tuple[Tensor, Tensor]:
    """`logits` to fit something on, as float64, and `labels` (integers or soft targets), both checked.

    A label must not point at a logit of -inf. Rows that are all probabilities are refused: logits are sums of
    weights, of which some are negative or do not add up to 1.
    """
    given, y = pair(logits, labels, name="logits", soft=True)
    z = _finite(given)
    if y.ndim == 2:
        if not bool(normalised(y)):
            _complain_probs("labels", 0, y)
        y = y.double()
        off = ((y > 0) & z.isneginf()).any(1)
    else:
        y = y.long()
        bad = (y < 0) | (y >= z.shape[1])
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            raise InputError(f"labels[{row}] is {int(y[row])}; labels must lie in 0 … {z.shape[1] - 1}")
        off = z.gather(1, y[:, None])[:, 0].isneginf()
    if bool(off.any()):
        row = int(off.nonzero()[0, 0])
        raise InputError(f"labels[{row}] points at a choice whose logit is -inf; {_OF_PROBABILITIES}")
    if bool((z >= 0).all() & ((z.sum(1) - 1).abs() <= _ROUNDED).all()):
        raise InputError(f"logits holds probabilities (each row sums to 1); {_OF_PROBABILITIES}")
    return z, y


def _no_labels(values: Tensor) -> Tensor:
    return torch.zeros(values.shape[:1], dtype=torch.int64)


def _finite(logits: Tensor) -> Tensor:
    """`logits` as float64, if no row holds NaN, +inf or nothing but -inf."""
    z = logits.double()
    top = z.amax(1)
    if not bool(top.isfinite().all()):
        row = int((~top.isfinite()).nonzero()[0, 0])
        raise InputError(f"logits[{row}] holds NaN, +inf or nothing but -inf; look for its input")
    return z
