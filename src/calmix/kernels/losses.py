"""The kernels of the losses of a batch, clean and mixed, and of their gradient by its logits.

What they compute is said in `mixing.losses`; `mixing.fused` calls them. Numbers that change from batch to batch, and
how many mixes there are, are told when a kernel runs: each is compiled once for a number of columns, never during a
capture.
"""

import triton
import triton.language as tl

__all__ = ["gradients", "losses"]

_LOSSES = (
    "logits targets class_weights partners owns weights out slopes classes rows mixes has_class_weights has_weights "
    "own_by_mix own_by_row weight_by_mix weight_by_row clean clean_kept clean_spread kept spread"
)


@triton.jit(do_not_specialize=_LOSSES.split())
def losses(
    logits,
    targets,
    class_weights,
    partners,
    owns,
    weights,
    out,
    slopes,
    classes,
    rows,
    mixes,
    has_class_weights,
    has_weights,
    own_by_mix,
    own_by_row,
    weight_by_mix,
    weight_by_row,
    clean,
    clean_kept,
    clean_spread,
    kept,
    spread,
    COLUMNS: tl.constexpr,
):
    """Write the loss of a row, and its slopes: by the row's own logits, and in each mix by its partner's."""
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    there = column < classes
    z = tl.load(logits + row * classes + column, mask=there, other=0.0)
    t = tl.load(targets + row * classes + column, mask=there, other=0.0)
    c = tl.load(class_weights + column, mask=column < classes * has_class_weights, other=1.0)
    loss, slope = _cross_entropy(z, t * clean_kept + (1 - t) * clean_spread, c, there)
    total = clean * loss
    by_own = clean * slope
    for mix in range(mixes):
        partner = tl.load(partners + mix * rows + row)
        own = tl.load(owns + mix * own_by_mix + row * own_by_row)
        weight = tl.load(weights + mix * weight_by_mix + row * weight_by_row, mask=has_weights > 0, other=1.0)
        other_z = tl.load(logits + partner * classes + column, mask=there, other=0.0)
        other_t = tl.load(targets + partner * classes + column, mask=there, other=0.0)
        mixed_t = own * (t * kept + (1 - t) * spread) + (1 - own) * (other_t * kept + (1 - other_t) * spread)
        loss, slope = _cross_entropy(own * z + (1 - own) * other_z, mixed_t, c, there)
        total += weight * loss
        by_own += weight * own * slope
        tl.store(slopes + ((mix + 1) * rows + row) * classes + column, weight * (1 - own) * slope, mask=there)
    tl.store(slopes + row * classes + column, by_own, mask=there)
    tl.store(out + row, total)


@triton.jit
def _cross_entropy(logits, targets, class_weights, there):
    """Return the cross-entropy of one row, and its gradient by the logits."""
    logits = tl.where(there, logits, float("-inf"))
    shifted = logits - tl.max(logits, axis=0)
    exps = tl.exp(shifted)
    total = tl.sum(exps, axis=0)
    weighted = tl.where(there, targets * class_weights, 0.0)
    # Where there is no class, 0 · −∞ would be NaN; where there is one, it shall be.
    loss = -tl.sum(tl.where(there, weighted * (shifted - tl.log(total)), 0.0), axis=0)
    return loss, tl.sum(weighted, axis=0) * (exps / total) - weighted


_GRADIENTS = "upstream slopes partners out classes rows size mixes by_row"


@triton.jit(do_not_specialize=_GRADIENTS.split())
def gradients(
    upstream,
    slopes,
    partners,
    out,
    classes,
    rows,
    size,
    mixes,
    by_row,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the gradient by the logits of a row: of its own loss, and of those whose partner it is, in their order."""
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    there = column < classes
    total = tl.load(upstream + row * by_row) * tl.load(slopes + row * classes + column, mask=there, other=0.0)
    first = row // size * size
    for mix in range(mixes):
        for start in range(0, size, ROWS):
            place = start + tl.arange(0, ROWS)
            other = first + place
            partner = tl.load(partners + mix * rows + other, mask=place < size, other=-1)
            is_ours = partner == row
            scale = tl.load(upstream + other * by_row, mask=is_ours, other=0.0)
            at = slopes + ((mix + 1) * rows + other)[:, None] * classes + column[None, :]
            theirs = tl.load(at, mask=is_ours[:, None] & there[None, :], other=0.0)
            total += tl.sum(scale[:, None] * theirs, axis=0)
    tl.store(out + row * classes + column, total, mask=there)
