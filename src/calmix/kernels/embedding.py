"""The kernels of the vectors that an encoder begins with: words, kinds of text and positions, normalised and dropped.

Shapes are those of `layers`; tables are [runs, rows, numbers].
"""

import triton
import triton.language as tl

from calmix.kernels.layers import block_of, kept, normed, normed_back

__all__ = ["collect", "embed", "embed_back"]


@triton.jit(do_not_specialize=["tokens", "width", "words", "kinds", "positions", "site"])
def embed(ids, types, words_at, kinds_at, positions_at, weight, shift, seeds, y, z, mean, scale, tokens, width, words,
          kinds, positions, site, drop, eps, N: tl.constexpr, PAD: tl.constexpr, GIVEN: tl.constexpr):  # fmt: skip
    """Write z, the sum of three vectors of each token, and y, what dropout leaves of its layer norm.

    If they are given, the vectors of words are one for each token, instead of one for each word.
    """
    run, column = tl.program_id(1).to(tl.int64), tl.arange(0, PAD)
    row = run * tokens + tl.program_id(0)
    places, own, known = row * N + column, run * N + column, column < N
    kind = z.dtype.element_ty
    of, position = tl.load(types + row), row % width
    word = row if GIVEN else run * words + tl.load(ids + row)
    # Added in transformers' order, and rounded wherever it would be.
    x = tl.load(words_at + word * N + column, mask=known, other=0.0).to(tl.float32)
    x = x + tl.load(kinds_at + (run * kinds + of) * N + column, mask=known, other=0.0).to(tl.float32)
    x = x.to(kind).to(tl.float32)
    x = x + tl.load(positions_at + (run * positions + position) * N + column, mask=known, other=0.0).to(tl.float32)
    x = x.to(kind)
    tl.store(z + places, x, mask=known)
    x = normed(x.to(tl.float32), weight, shift, mean, scale, row, own, known, eps, N).to(kind).to(tl.float32)
    tl.store(y + places, kept(x, seeds, site, places, drop).to(kind), mask=known)


@triton.jit(do_not_specialize=["tokens", "site"])
def embed_back(dy, z, mean, scale, weight, seeds, dz, parts, tokens, site, drop,
               N: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Write the gradient by z, and for each block of rows those by weight and shift."""
    run, column = tl.program_id(1), tl.arange(0, PAD)
    row, places, there = block_of(run, column, tokens, N, ROWS)
    known = column < N
    kind = dz.dtype.element_ty
    w = tl.load(weight + run * N + column, mask=known, other=0.0).to(tl.float32)
    g = tl.load(dy + places, mask=there, other=0.0).to(tl.float32)
    g = kept(g, seeds, site, places, drop).to(kind).to(tl.float32)
    d, by_weight = normed_back(g, z, w, mean, scale, row, places, there, N)
    tl.store(dz + places, d.to(kind), mask=there)
    at = parts + (run * tl.num_programs(0) + tl.program_id(0)) * N + column
    tl.store(at, tl.sum(by_weight, 0), mask=known)
    tl.store(at + tl.num_programs(1) * tl.num_programs(0) * N, tl.sum(g, 0), mask=known)


@triton.jit(do_not_specialize=["count", "words", "padding"])
def collect(dz, found, order, out, count, words, padding, N: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr):
    """Write the gradient of each word that occurs: the sum over where it does, padding aside.

    `found` are the words in ascending order, those of the second run counted on from the first's, and `order` says
    where each stands. The first of equal ones does for all of them.
    """
    place = tl.program_id(0)
    word = tl.load(found + place)
    before = tl.load(found + place - 1, mask=place > 0, other=-1)
    if (word != before) & (word % words != padding):
        step, column = tl.arange(0, ROWS), tl.arange(0, PAD)
        known = column < N
        total = tl.zeros((ROWS, PAD), tl.float32)
        start, more = place, True
        while more:
            same = tl.load(found + start + step, mask=start + step < count, other=-1) == word
            row = tl.load(order + start + step, mask=same, other=0)
            total += tl.load(dz + row[:, None] * N + column[None, :], mask=same[:, None] & known[None, :], other=0.0)
            more = tl.sum(same.to(tl.int32)) == ROWS
            start += ROWS
        tl.store(out + word * N + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=known)
