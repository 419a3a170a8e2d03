"""The kernels of a transformer layer between its products of matrices: what comes before and after them, in one pass.

Tensors are [runs · tokens, numbers]: the rows of the first run, then of the second. Weights are [runs, numbers]. What
is dropped is drawn from a seed and the place of a number, so that nothing of it is kept for the backward pass.
"""

import triton
import triton.language as tl

__all__ = ["add_norm", "add_norm_back", "block_of", "gelu", "gelu_back", "kept", "normed", "normed_back", "totals"]


@triton.jit
def kept(x, seeds, site, places, drop):
    """Return what dropout leaves of numbers at some places."""
    least = tl.full((), drop * 16777216, tl.float32).to(tl.int32)
    return tl.where(drawn(seeds, site, places) >= least, x * (1 / (1 - drop)), 0.0)


@triton.jit
def drawn(seeds, site, places):
    """Return 24 random bits for each place.

    A hash of 32 bits, into which go both halves of a seed that was mixed itself (by SplitMix64, once for a program):
    instructions for each number are what a kernel of a few rows waits for.
    """
    seed = tl.load(seeds + site).to(tl.uint64) + 0x9E3779B97F4A7C15
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9
    seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EB
    seed = seed ^ (seed >> 31)
    x = places.to(tl.uint32) + (seed & 0xFFFFFFFF).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) + (seed >> 32).to(tl.uint32)
    x = x * 0x735A2D97
    x = (x ^ (x >> 15)) * 0x9E3779B1
    return ((x ^ (x >> 16)) >> 8).to(tl.int32)


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
def normed_back(g, z, weight, mean, scale, row, places, there, N: tl.constexpr):
    """Return the gradient by what was normalised, of some rows, and what each adds to that by the weights."""
    x = tl.load(z + places, mask=there, other=0.0).to(tl.float32)
    some = tl.max(there.to(tl.int32), 1) > 0
    by = tl.load(scale + row, mask=some, other=0.0)[:, None]
    x = tl.where(there, (x - tl.load(mean + row, mask=some, other=0.0)[:, None]) * by, 0.0)
    inward = g * weight[None, :]
    middle, slope = tl.sum(inward, 1)[:, None] / N, tl.sum(inward * x, 1)[:, None] / N
    return by * (inward - middle - x * slope), g * x


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


@triton.jit(do_not_specialize=["tokens", "site"])
def add_norm_back(dy, z, mean, scale, weight, seeds, dz, da, parts, tokens, site, drop,
                  N: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Write the gradients by the residual and by `a`; for each block of rows those by weight, shift and bias."""
    run, column = tl.program_id(1), tl.arange(0, PAD)
    row, places, there = block_of(run, column, tokens, N, ROWS)
    known = column < N
    kind = dz.dtype.element_ty
    w = tl.load(weight + run * N + column, mask=known, other=0.0).to(tl.float32)
    g = tl.load(dy + places, mask=there, other=0.0).to(tl.float32)
    d, by_weight = normed_back(g, z, w, mean, scale, row, places, there, N)
    d = d.to(kind)
    tl.store(dz + places, d, mask=there)
    d = kept(d.to(tl.float32), seeds, site, places, drop).to(kind)
    tl.store(da + places, d, mask=there)
    blocks, runs = tl.num_programs(0), tl.num_programs(1)
    at = parts + (run * blocks + tl.program_id(0)) * N + column
    tl.store(at, tl.sum(by_weight, 0), mask=known)
    tl.store(at + runs * blocks * N, tl.sum(g, 0), mask=known)
    tl.store(at + 2 * runs * blocks * N, tl.sum(d.to(tl.float32), 0), mask=known)


@triton.jit
def block_of(run, column, tokens, N: tl.constexpr, ROWS: tl.constexpr):
    """Return the rows of a program's block, the places of their numbers, and which of these there are."""
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = run * tokens + line
    return row, row[:, None] * N + column[None, :], (line < tokens)[:, None] & (column < N)[None, :]


@triton.jit
def _below(x):
    """Return which share of a normal distribution lies below x, to 1e-7, and exp(−x²/2).

    By formula 7.1.26 of Abramowitz and Stegun, in a third of the instructions of an exact error function.
    """
    t = 1 / (1 + 0.23164190 * tl.abs(x))  # 0.3275911 / √2
    power = tl.exp(-0.5 * x * x)
    tail = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    tail = tail * t * power
    return tl.where(x < 0, tail, 1 - tail), power


@triton.jit(do_not_specialize=["tokens"])
def gelu(u, bias, y, tokens, N: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Write GELU of u + bias."""
    run, column = tl.program_id(2), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    _, places, there = block_of(run, column, tokens, N, ROWS)
    x = tl.load(u + places, mask=there, other=0.0)
    b = tl.load(bias + run * N + column, mask=column < N, other=0.0).to(tl.float32)
    x = (x.to(tl.float32) + b[None, :]).to(x.dtype).to(tl.float32)
    share, _ = _below(x)
    tl.store(y + places, (x * share).to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["tokens"])
def gelu_back(dy, u, bias, du, parts, tokens, N: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Write the gradient by u, and for each block of rows that by the bias."""
    run, column = tl.program_id(2), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    _, places, there = block_of(run, column, tokens, N, ROWS)
    x = tl.load(u + places, mask=there, other=0.0)
    g = tl.load(dy + places, mask=there, other=0.0).to(tl.float32)
    b = tl.load(bias + run * N + column, mask=column < N, other=0.0).to(tl.float32)
    x = (x.to(tl.float32) + b[None, :]).to(x.dtype).to(tl.float32)
    share, power = _below(x)
    d = (g * (share + x * power * 0.3989422804014327)).to(du.dtype.element_ty)
    tl.store(du + places, d, mask=there)
    at = parts + (run * tl.num_programs(0) + tl.program_id(0)) * N + column
    tl.store(at, tl.sum(d.to(tl.float32), 0), mask=column < N)


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
