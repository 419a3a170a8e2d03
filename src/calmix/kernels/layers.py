"""The kernels of a transformer layer between its products of matrices: what comes before and after them, in one pass.

Tensors are [runs · tokens, numbers]: the rows of the first run, then of the second. Weights are [runs, numbers]. What
is dropped is drawn from a seed and the place of a number, so that nothing of it is kept for the backward pass.
"""

import triton
import triton.language as tl

__all__ = ["add_norm", "add_norm_back", "drawn", "gelu", "gelu_back", "kept", "normed", "normed_back", "totals"]


@triton.jit
def kept(x, seeds, site, places, drop):
    """Return what dropout leaves of numbers at some places."""
    return tl.where(drawn(seeds, site, places) >= drop, x / (1 - drop), 0.0)


@triton.jit
def drawn(seeds, site, places):
    """Return a number from 0 to 1 for each place, by SplitMix64: a third of the work of Triton's own generator."""
    z = tl.load(seeds + site).to(tl.uint64) + places.to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return ((z ^ (z >> 31)) >> 40).to(tl.uint32).to(tl.float32) * (1 / 16777216)


@triton.jit
def normed(x, weight, shift, mean, scale, row, own, known, eps, N: tl.constexpr):
    """Return the layer norm of a row; its mean and its scale are kept."""
    middle = tl.sum(x) / N
    x = tl.where(known, x - middle, 0.0)
    by = tl.rsqrt(tl.sum(x * x) / N + eps)
    tl.store(mean + row, middle)
    tl.store(scale + row, by)
    w = tl.load(weight + own, mask=known, other=0.0).to(tl.float32)
    return x * by * w + tl.load(shift + own, mask=known, other=0.0).to(tl.float32)


@triton.jit
def normed_back(g, z, weight, mean, scale, row, places, known, N: tl.constexpr):
    """Return the gradient by what was normalised, and that by each weight."""
    x = tl.load(z + places, mask=known, other=0.0).to(tl.float32)
    by = tl.load(scale + row)
    x = tl.where(known, (x - tl.load(mean + row)) * by, 0.0)
    inward = g * weight
    return by * (inward - tl.sum(inward) / N - x * (tl.sum(inward * x) / N)), g * x


@triton.jit(do_not_specialize=["tokens", "site"])
def add_norm(a, bias, residual, weight, shift, seeds, y, z, mean, scale, tokens, site, drop, eps,
             N: tl.constexpr, PAD: tl.constexpr):  # fmt: skip
    """Write z = dropout(a + bias) + residual, and y, its layer norm; the rows' means and scales are kept."""
    run, column = tl.program_id(1), tl.arange(0, PAD)
    row = run * tokens + tl.program_id(0)
    places, own, known = row * N + column, run * N + column, column < N
    kind = z.dtype.element_ty
    # Rounded wherever a layer on its own would write.
    x = tl.load(a + places, mask=known, other=0.0).to(tl.float32)
    x = (x + tl.load(bias + own, mask=known, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    x = kept(x, seeds, site, places, drop).to(kind).to(tl.float32)
    x = (x + tl.load(residual + places, mask=known, other=0.0).to(tl.float32)).to(kind)
    tl.store(z + places, x, mask=known)
    x = normed(x.to(tl.float32), weight, shift, mean, scale, row, own, known, eps, N)
    tl.store(y + places, x.to(kind), mask=known)


@triton.jit(do_not_specialize=["tokens", "each", "site"])
def add_norm_back(dy, z, mean, scale, weight, seeds, dz, da, parts, tokens, each, site, drop,
                  N: tl.constexpr, PAD: tl.constexpr):  # fmt: skip
    """Write the gradients by the residual and by `a`; for each block of rows those by weight, shift and bias."""
    block, run, column = tl.program_id(0), tl.program_id(1), tl.arange(0, PAD)
    known = column < N
    kind = dz.dtype.element_ty
    w = tl.load(weight + run * N + column, mask=known, other=0.0).to(tl.float32)
    by_weight, by_shift, by_bias = (
        tl.zeros((PAD,), tl.float32),
        tl.zeros((PAD,), tl.float32),
        tl.zeros((PAD,), tl.float32),
    )
    for row in range(run * tokens + block * each, run * tokens + tl.minimum(block * each + each, tokens)):
        places = row * N + column
        g = tl.load(dy + places, mask=known, other=0.0).to(tl.float32)
        d, of_weight = normed_back(g, z, w, mean, scale, row, places, known, N)
        d = d.to(kind)
        tl.store(dz + places, d, mask=known)
        d = kept(d.to(tl.float32), seeds, site, places, drop).to(kind)
        tl.store(da + places, d, mask=known)
        by_weight += of_weight
        by_shift += g
        by_bias += d.to(tl.float32)
    blocks, runs = tl.num_programs(0), tl.num_programs(1)
    at = parts + (run * blocks + block) * N + column
    tl.store(at, by_weight, mask=known)
    tl.store(at + runs * blocks * N, by_shift, mask=known)
    tl.store(at + 2 * runs * blocks * N, by_bias, mask=known)


@triton.jit(do_not_specialize=["tokens", "each"])
def gelu(u, bias, y, tokens, each, N: tl.constexpr, COLUMNS: tl.constexpr):
    """Write GELU of u + bias."""
    block, run, column = tl.program_id(0), tl.program_id(2), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < N
    b = tl.load(bias + run * N + column, mask=known, other=0.0).to(tl.float32)
    for row in range(run * tokens + block * each, run * tokens + tl.minimum(block * each + each, tokens)):
        x = tl.load(u + row * N + column, mask=known, other=0.0)
        x = (x.to(tl.float32) + b).to(x.dtype).to(tl.float32)
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
        tl.store(y + row * N + column, x.to(y.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["tokens", "each"])
def gelu_back(dy, u, bias, du, parts, tokens, each, N: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the gradient by u, and for each block of rows that by the bias."""
    block, run, column = tl.program_id(0), tl.program_id(2), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < N
    kind = du.dtype.element_ty
    b = tl.load(bias + run * N + column, mask=known, other=0.0).to(tl.float32)
    by_bias = tl.zeros((COLUMNS,), tl.float32)
    for row in range(run * tokens + block * each, run * tokens + tl.minimum(block * each + each, tokens)):
        x = tl.load(u + row * N + column, mask=known, other=0.0)
        x = (x.to(tl.float32) + b).to(x.dtype).to(tl.float32)
        slope = 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        d = (tl.load(dy + row * N + column, mask=known, other=0.0).to(tl.float32) * slope).to(kind)
        tl.store(du + row * N + column, d, mask=known)
        by_bias += d.to(tl.float32)
    tl.store(parts + (run * tl.num_programs(0) + block) * N + column, by_bias, mask=known)


@triton.jit(do_not_specialize=["blocks", "count"])
def totals(parts, first, second, third, blocks, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums over blocks of one, two or three weights' gradients, each [runs, count]."""
    which, run = tl.program_id(2), tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < count
    parts += (which * tl.num_programs(1) + run) * blocks * count
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, blocks, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < blocks)[:, None] & known[None, :]
        total += tl.load(parts + row[:, None] * count + column[None, :], mask=there, other=0.0)
    found = tl.sum(total, 0).to(first.dtype.element_ty)
    at = run * count + column
    if which == 0:
        tl.store(first + at, found, mask=known)
    elif which == 1:
        tl.store(second + at, found, mask=known)
    else:
        tl.store(third + at, found, mask=known)
