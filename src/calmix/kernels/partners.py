"""The kernel that finds the most and the least similar row of the other side for each row of a batch.

What it computes is said in `dynamics.saliency`; `mixing.fused` calls it.
"""

import triton
import triton.language as tl

__all__ = ["partners"]

_LEAST = tl.constexpr(2.2250738585072014e-308)  # the smallest normal number in double precision


_PARTNERS = ["logits", "targets", "hidden", "sides", "out", "classes", "features", "rows", "size"]


@triton.jit(do_not_specialize=_PARTNERS)
def partners(
    logits,
    targets,
    hidden,
    sides,
    out,
    classes,
    features,
    rows,
    size,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    BY_HEAD: tl.constexpr,
):
    """Write both partners of a row: the first of equals, and itself if nobody is on the other side.

    They are compared by |p − y|, or by the gradient of the head's weights, in double precision.
    """
    row = tl.program_id(0)
    side = tl.load(sides + row)
    own = _directions(logits, targets, row + tl.arange(0, 1), rows, classes, COLUMNS, BY_HEAD)
    first = row // size * size
    near, far = row, row
    # Below every cosine.
    nearest = tl.full((), -2.0, tl.float64)
    farthest = tl.full((), -2.0, tl.float64)
    for start in range(0, size, ROWS):
        place = start + tl.arange(0, ROWS)
        other = first + place
        allowed = (place < size) & (tl.load(sides + other, mask=place < size, other=-1) + side == 1)
        theirs = _directions(logits, targets, other, rows, classes, COLUMNS, BY_HEAD)
        alike = tl.sum(own * theirs, axis=1)
        if BY_HEAD:
            alike *= _cosines(hidden, row, other, rows, features, ROWS, FEATURES)
        found, best = _first_largest(alike, allowed, other)
        near = tl.where(best > nearest, found, near)
        nearest = tl.maximum(best, nearest)
        found, best = _first_largest(-alike, allowed, other)
        far = tl.where(best > farthest, found, far)
        farthest = tl.maximum(best, farthest)
    tl.store(out + row, near.to(tl.int64))
    tl.store(out + rows + row, far.to(tl.int64))


@triton.jit
def _first_largest(values, allowed, places):
    """Return the place of the largest cosine, of equals the first, and itself; NaN is the largest, as for torch."""
    values = tl.where(values < 2.0, values, float("inf"))
    values = tl.where(allowed, values, float("-inf"))
    best = tl.max(values, axis=0)
    return tl.min(tl.where(values == best, places, 2147483647), axis=0), best


@triton.jit
def _directions(logits, targets, row, rows, classes, COLUMNS: tl.constexpr, SIGNED: tl.constexpr):
    """Return p − y of some rows, or its size, at length 1; zero rows as they are."""
    column = tl.arange(0, COLUMNS)[None, :]
    there = (row < rows)[:, None] & (column < classes)
    at = row[:, None] * classes + column
    z = tl.load(logits + at, mask=there, other=0.0).to(tl.float64)
    y = tl.load(targets + at, mask=there, other=0.0).to(tl.float64)
    z = tl.where(column < classes, z, float("-inf"))
    exps = tl.exp(z - tl.max(z, axis=1)[:, None])
    gap = exps / tl.sum(exps, axis=1)[:, None] - y
    # The entry of the largest target is minus the sum of the others: less is lost than in p − 1.
    y = tl.where(column < classes, y, float("-inf"))
    top = tl.min(tl.where(y == tl.max(y, axis=1)[:, None], column, COLUMNS), axis=1)[:, None]
    gap = tl.where((column == top) | (column >= classes), 0.0, gap)
    gap = tl.where(column == top, -tl.sum(gap, axis=1)[:, None], gap)
    if not SIGNED:
        gap = tl.abs(gap)
    gap = gap / tl.maximum(tl.max(tl.abs(gap), axis=1), _LEAST)[:, None]
    return gap / tl.maximum(tl.sqrt(tl.sum(gap * gap, axis=1)), _LEAST)[:, None]


@triton.jit
def _cosines(hidden, row, other, rows, features, ROWS: tl.constexpr, FEATURES: tl.constexpr):
    """Return the cosine of what the head read for a row and for some others; 0 where one of them is zero."""
    product = tl.zeros((ROWS, FEATURES), tl.float64)
    squares = tl.zeros((ROWS, FEATURES), tl.float64)
    own_squares = tl.zeros((FEATURES,), tl.float64)
    for start in range(0, features, FEATURES):
        feature = start + tl.arange(0, FEATURES)
        there = feature < features
        own = tl.load(hidden + row * features + feature, mask=there, other=0.0).to(tl.float64)
        at = other[:, None] * features + feature[None, :]
        theirs = tl.load(hidden + at, mask=(other < rows)[:, None] & there[None, :], other=0.0).to(tl.float64)
        product += own[None, :] * theirs
        squares += theirs * theirs
        own_squares += own * own
    # Squares of what was in single precision do not vanish in double.
    lengths = tl.sqrt(tl.sum(squares, axis=1)) * tl.sqrt(tl.sum(own_squares, axis=0))
    return tl.sum(product, axis=1) / tl.maximum(lengths, _LEAST)
