"""The kernels of self-attention over short texts, biases of queries, keys and values included.

One program does a head of a text. Queries, keys and values are side by side, [runs · tokens, 3 · heads · size], as one
product of matrices makes them. What is dropped is drawn from a seed and a place, in both directions alike.
"""

import triton
import triton.language as tl

from calmix.kernels.layers import kept

__all__ = ["attend", "attend_back"]


@triton.jit
def _part(numbers, bias, which, text, head, run, row, there, width, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """Return the queries (0), keys (1) or values (2) of a head of a text, [tokens, size]."""
    column = (which * HEADS + head) * SIZE + tl.arange(0, SIZE)
    places = (text * width + row)[:, None] * (3 * HEADS * SIZE) + column[None, :]
    x = tl.load(numbers + places, mask=there[:, None], other=0.0)
    b = tl.load(bias + run * (3 * HEADS * SIZE) + column).to(tl.float32)
    # What is beyond the text is 0, whatever the bias: it must not be NaN times 0.
    return tl.where(there[:, None], x.to(tl.float32) + b[None, :], 0.0).to(x.dtype)


@triton.jit
def _weights(q, k, mask, text, row, width, scale, LENGTH: tl.constexpr):
    """Return how much each token attends to each, before anything is dropped."""
    scores = tl.dot(q, tl.trans(k)) * scale
    seen = tl.load(mask + text * width + row, mask=row < width, other=0) > 0
    scores = tl.where(seen[None, :], scores, float("-inf"))
    raised = tl.exp(scores - tl.max(scores, 1)[:, None])
    return raised * (1 / tl.sum(raised, 1))[:, None]


@triton.jit
def _factors(seeds, site, row, drop, LENGTH: tl.constexpr):
    """Return what dropout multiplies the weights by."""
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    places = (program * LENGTH + row)[:, None] * LENGTH + row[None, :]
    return kept(1.0, seeds, site, places, drop)


@triton.jit(do_not_specialize=["width", "texts", "site"])
def attend(numbers, bias, mask, seeds, out, width, texts, site, scale, drop,
           HEADS: tl.constexpr, SIZE: tl.constexpr, LENGTH: tl.constexpr):  # fmt: skip
    """Write what each token attends to; `texts` is how many a run has."""
    text, head = tl.program_id(0), tl.program_id(1)
    run, row, column = text // texts, tl.arange(0, LENGTH), tl.arange(0, SIZE)
    there = row < width
    q = _part(numbers, bias, 0, text, head, run, row, there, width, HEADS, SIZE)
    k = _part(numbers, bias, 1, text, head, run, row, there, width, HEADS, SIZE)
    v = _part(numbers, bias, 2, text, head, run, row, there, width, HEADS, SIZE)
    weights = _weights(q, k, mask, text, row, width, scale, LENGTH) * _factors(seeds, site, row, drop, LENGTH)
    found = tl.dot(weights.to(v.dtype), v).to(out.dtype.element_ty)
    places = (text * width + row)[:, None] * (HEADS * SIZE) + head * SIZE + column[None, :]
    tl.store(out + places, found, mask=there[:, None])


@triton.jit(do_not_specialize=["width", "texts", "site"])
def attend_back(dout, numbers, bias, mask, seeds, back, parts, width, texts, site, scale, drop,
                HEADS: tl.constexpr, SIZE: tl.constexpr, LENGTH: tl.constexpr):  # fmt: skip
    """Write the gradients by queries, keys and values, and for each text those by their biases."""
    text, head = tl.program_id(0), tl.program_id(1)
    run, row, column = text // texts, tl.arange(0, LENGTH), tl.arange(0, SIZE)
    there = row < width
    q = _part(numbers, bias, 0, text, head, run, row, there, width, HEADS, SIZE)
    k = _part(numbers, bias, 1, text, head, run, row, there, width, HEADS, SIZE)
    v = _part(numbers, bias, 2, text, head, run, row, there, width, HEADS, SIZE)
    weights = _weights(q, k, mask, text, row, width, scale, LENGTH)
    factors = _factors(seeds, site, row, drop, LENGTH)
    places = (text * width + row)[:, None] * (HEADS * SIZE) + head * SIZE + column[None, :]
    g = tl.load(dout + places, mask=there[:, None], other=0.0)
    by_weights = tl.dot(g, tl.trans(v)) * factors
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, 1)[:, None]) * scale
    by_scores = tl.where(there[:, None], by_scores, 0.0).to(q.dtype)
    dq = tl.dot(by_scores, k)
    dk = tl.dot(tl.trans(by_scores), q)
    dv = tl.dot(tl.trans((weights * factors).to(g.dtype)), g)
    kind = back.dtype.element_ty
    full = 3 * HEADS * SIZE
    at = (text * width + row)[:, None] * full + head * SIZE + column[None, :]
    whole = parts + text * full + head * SIZE + column
    tl.store(back + at, dq.to(kind), mask=there[:, None])
    tl.store(back + at + HEADS * SIZE, dk.to(kind), mask=there[:, None])
    tl.store(back + at + 2 * HEADS * SIZE, dv.to(kind), mask=there[:, None])
    tl.store(whole, tl.sum(dq, 0))
    tl.store(whole + HEADS * SIZE, tl.sum(dk, 0))
    tl.store(whole + 2 * HEADS * SIZE, tl.sum(dv, 0))
