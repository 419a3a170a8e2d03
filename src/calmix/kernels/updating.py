"""The kernels of a fused update of all weights.

What the columns of the tables are is said in `training.fusing`, which calls them.
"""

import triton
import triton.language as tl

__all__ = ["decide", "squares", "update"]

_WEIGHT, _MEAN, _SQUARE, _COPY, _STEP, _RATE, _SIZE, _HOME, _RUN, _EVEN = map(tl.constexpr, range(10))
_COLUMNS = tl.constexpr(10)
_DECAY, _BETA1, _BETA2, _EPS = map(tl.constexpr, range(4))
_GIVEN = tl.constexpr(4)
_SCALE, _RATIO, _ROOT = map(tl.constexpr, range(3))
_DECIDED = tl.constexpr(3)


# One compiled kernel for all numbers of blocks: a number that 16 divides would have its own.
_same = {"do_not_specialize": ["count"]}


@triton.jit(**_same)
def squares(gradients, blocks, weights, included, out, count, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    """Write the sum of the squared gradients of each block; 0 where there are none.

    All blocks of a program at once: one after the other, it would wait for memory three times for each.
    """
    block = tl.program_id(0) * TIMES + tl.arange(0, TIMES)
    there = block < count
    weight = tl.load(blocks + 2 * block, mask=there, other=0)
    given = there & (tl.load(included + weight) > 0)
    if tl.min(tl.load(weights + _COLUMNS * weight + _EVEN)) > 0:
        total = _squared(gradients, blocks, weights, block, weight, given, BLOCK, True)
    else:
        total = _squared(gradients, blocks, weights, block, weight, given, BLOCK, False)
    tl.store(out + block, total, mask=there)


@triton.jit
def _squared(gradients, blocks, weights, block, weight, given, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Return the sums of some blocks. What is promised of a number holds for all uses of its load, as below."""
    start = tl.multiple_of(tl.load(blocks + 2 * block + 1, mask=given, other=0), BLOCK)
    row = weights + _COLUMNS * weight
    size, home = tl.load(row + _SIZE), tl.load(row + _HOME)
    if EVEN:
        size, home = tl.multiple_of(size, 16), tl.multiple_of(home, 4)
    places = start[:, None] + tl.arange(0, BLOCK)[None, :]
    inside = (places < size[:, None]) & given[:, None]
    g = tl.load(gradients + (home[:, None] + places), mask=inside, other=0.0).to(tl.float32)
    return tl.sum(g * g, 1)


@triton.jit
def _gradients(gradients, row, start, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Return those of a block. What is promised of a number holds for all uses of its load: each case has its own."""
    size, home = tl.load(row + _SIZE), tl.load(row + _HOME)
    if EVEN:
        # Four numbers at a time, which in float32 are 16 bytes: in bf16 no more, or they change threads in between.
        size, home = tl.multiple_of(size, 16), tl.multiple_of(home, 4)
    places = start + tl.arange(0, BLOCK)
    return tl.load(gradients + home + places, mask=places < size, other=0.0).to(tl.float32)


@triton.jit(**_same)
def decide(weights, rates, included, total, steps, decided, number, bad, clip, count, BLOCK: tl.constexpr):
    """Count a step of each weight, and write what its update is multiplied and divided by: nothing of a bad run's."""
    weight = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = weight < count
    run = tl.load(weights + _COLUMNS * weight + _RUN, mask=there, other=0)
    norm = tl.sqrt(tl.load(total + run, mask=there, other=0.0))
    # Neither NaN nor infinite.
    good = norm < float("inf")
    # The first step at which a run went bad: whoever of its weights is the first to write, all write the same.
    before = tl.load(bad + run, mask=there, other=0.0)
    tl.store(bad + run, tl.where(good | (before >= 0), before, tl.load(number)), mask=there)
    given = tl.load(included + weight, mask=there, other=0.0)
    step = tl.load(steps + weight, mask=there, other=0.0) + tl.where(good, given, 0.0)
    tl.store(steps + weight, step, mask=there)
    # In double precision: in single, few digits are left of 1 − 0.999.
    done = step.to(tl.float64)
    beta1 = tl.load(rates + _GIVEN * weight + _BETA1, mask=there, other=0.5)
    beta2 = tl.load(rates + _GIVEN * weight + _BETA2, mask=there, other=0.5)
    correction1 = (1 - tl.exp2(done * tl.log2(beta1))).to(tl.float32)
    correction2 = (1 - tl.exp2(done * tl.log2(beta2))).to(tl.float32)
    scale = tl.where(good, given, 0.0) / tl.maximum(norm / clip, 1.0)
    tl.store(decided + _DECIDED * weight + _SCALE, scale, mask=there)
    tl.store(decided + _DECIDED * weight + _RATIO, correction1, mask=there)
    tl.store(decided + _DECIDED * weight + _ROOT, tl.sqrt(correction2), mask=there)


@triton.jit(**_same)
def update(gradients, blocks, weights, rates, decided, moved, steps, count, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    """Update the weights of each block, their moments and their copies, unless there is nothing to update."""
    for time in range(TIMES):
        block = tl.program_id(0) * TIMES + time
        if block < count:
            weight, start = tl.load(blocks + 2 * block), tl.multiple_of(tl.load(blocks + 2 * block + 1), BLOCK)
            row, given, found = weights + _COLUMNS * weight, rates + _GIVEN * weight, decided + _DECIDED * weight
            # 0 for what has no gradient or a bad one.
            if tl.load(found + _SCALE) > 0:
                if tl.load(row + _EVEN) > 0:
                    _update(gradients, row, given, found, moved + block, start, BLOCK, True)
                else:
                    _update(gradients, row, given, found, moved + block, start, BLOCK, False)
                if start == 0:
                    tl.store(tl.load(row + _STEP).to(tl.pointer_type(tl.float32)), tl.load(steps + weight))


@triton.jit
def _update(gradients, row, given, found, moved, start, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Update one block."""
    g = _gradients(gradients, row, start, BLOCK, EVEN)
    decay = tl.load(given + _DECAY).to(tl.float32)
    if (tl.max(tl.abs(g)) > 0) | (tl.load(moved) > 0) | (decay > 0):
        p_at = tl.load(row + _WEIGHT).to(tl.pointer_type(tl.float32))
        m_at = tl.load(row + _MEAN).to(tl.pointer_type(tl.float32))
        v_at = tl.load(row + _SQUARE).to(tl.pointer_type(tl.float32))
        c_at = tl.load(row + _COPY).to(tl.pointer_type(tl.bfloat16))
        size = tl.load(row + _SIZE)
        if EVEN:
            p_at, m_at, v_at = tl.multiple_of(p_at, 16), tl.multiple_of(m_at, 16), tl.multiple_of(v_at, 16)
            c_at, size = tl.multiple_of(c_at, 8), tl.multiple_of(size, 16)
        places = start + tl.arange(0, BLOCK)
        there = places < size
        lr = tl.load(tl.load(row + _RATE).to(tl.pointer_type(tl.float32)))
        beta1, beta2 = tl.load(given + _BETA1), tl.load(given + _BETA2)
        g *= tl.load(found + _SCALE)
        p = tl.load(p_at + places, mask=there, other=0.0) * (1 - lr * decay)
        m = tl.load(m_at + places, mask=there, other=0.0) * beta1.to(tl.float32) + g * (1 - beta1).to(tl.float32)
        v = tl.load(v_at + places, mask=there, other=0.0) * beta2.to(tl.float32) + g * g * (1 - beta2).to(tl.float32)
        below = tl.sqrt(v) / tl.load(found + _ROOT) + tl.load(given + _EPS).to(tl.float32)
        p -= lr / tl.load(found + _RATIO) * m / below
        tl.store(p_at + places, p, mask=there)
        tl.store(m_at + places, m, mask=there)
        tl.store(v_at + places, v, mask=there)
        tl.store(c_at + places, p.to(tl.bfloat16), mask=there)
        tl.store(moved, 1)
