"""The kernel that records a batch: what it writes, and when, is said in `dynamics.noting`, which calls it."""

import triton
import triton.language as tl

__all__ = ["record"]

_COUNT, _MARGIN, _OFFSET, _SQUARE, _LOSS, _RIGHT, _FORGOTTEN, _RIVAL_PROBABILITY = map(tl.constexpr, range(8))
_LABEL, _SHIFT, _LAST_LOSS, _FIRST_RIGHT, _LAST_RIGHT, _PREDICTED, _RIVAL, _RIVAL_WEIGHT = map(tl.constexpr, range(8))
_COLUMNS = tl.constexpr(8)

# One compiled kernel for all batches, wherever they lie: inside a capture none can be loaded.
_same = ["logits", "labels", "rows", "sums", "notes", "count", "samples", "classes", "down", "across"]


@triton.jit(do_not_specialize=_same)
def record(
    logits,
    labels,
    rows,
    sums,
    notes,
    count,
    samples,
    classes,
    down,
    across,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """Record all copies of a sample in a batch, if this program's row is the first of them."""
    place = tl.program_id(0)
    row = tl.load(rows + place)
    mine = (row >= 0) & (row < samples) & (_next(rows, row, -1, count, ROWS) == place)
    if mine:
        old, known = sums + _COLUMNS * (row + 1), notes + _COLUMNS * (row + 1)
        times = tl.load(old + _COUNT)
        before, margins, offsets = times, tl.load(old + _MARGIN), tl.load(old + _OFFSET)
        squares, losses, rights = tl.load(old + _SQUARE), tl.load(old + _LOSS), tl.load(old + _RIGHT)
        forgotten, beside = tl.load(old + _FORGOTTEN), tl.load(old + _RIVAL_PROBABILITY)
        label, shift, last_loss = tl.load(known + _LABEL), tl.load(known + _SHIFT), tl.load(known + _LAST_LOSS)
        first_right, last_right = tl.load(known + _FIRST_RIGHT), tl.load(known + _LAST_RIGHT)
        predicted, rival = tl.load(known + _PREDICTED), tl.load(known + _RIVAL)
        probability = tl.zeros_like(times)
        candidate, weight = rival, tl.load(known + _RIVAL_WEIGHT)
        while place < count:
            gold_class = tl.load(labels + place).to(tl.int64)
            scores = logits + place.to(tl.int64) * down
            log, lead, winner, other = _observe(scores, gold_class, classes, across, CLASSES)
            # Never true of NaN.
            if (gold_class >= 0) & (log > -float("inf")):
                alone, gold = lead == float("inf"), tl.exp(log)
                right = (winner == gold_class).to(tl.float64)
                new = shift < 0
                shift, first_right = tl.where(new, gold, shift), tl.where(new, right, first_right)
                offset = gold - shift
                probability = tl.exp(log - lead)
                times += 1
                margins += tl.where(alone, float("nan"), lead)
                offsets += offset
                squares += offset * offset
                losses -= log
                rights += right
                forgotten += (last_right > right).to(tl.float64)
                beside += probability
                label, last_loss, last_right = gold_class.to(tl.float64), -log, right
                predicted = winner.to(tl.float64)
                rival = tl.where(alone, -1.0, other.to(tl.float64))
            place = _next(rows, row, place, count, ROWS)
        if times > before:
            # The vote for the rival: `vote` of `dynamics.noting`.
            agree = candidate == rival
            stays = agree | ((weight >= probability) & (candidate >= 0))
            weight = tl.where(agree, weight + probability, tl.abs(weight - probability))
            tl.store(old + _COUNT, times)
            tl.store(old + _MARGIN, margins)
            tl.store(old + _OFFSET, offsets)
            tl.store(old + _SQUARE, squares)
            tl.store(old + _LOSS, losses)
            tl.store(old + _RIGHT, rights)
            tl.store(old + _FORGOTTEN, forgotten)
            tl.store(old + _RIVAL_PROBABILITY, beside)
            tl.store(known + _LABEL, label)
            tl.store(known + _SHIFT, shift)
            tl.store(known + _LAST_LOSS, last_loss)
            tl.store(known + _FIRST_RIGHT, first_right)
            tl.store(known + _LAST_RIGHT, last_right)
            tl.store(known + _PREDICTED, predicted)
            tl.store(known + _RIVAL, tl.where(stays, candidate, rival))
            tl.store(known + _RIVAL_WEIGHT, weight)


@triton.jit
def _next(rows, row, after, count, ROWS: tl.constexpr):
    """Return the first place after some other at which a row stands in the batch; `count` if there is none."""
    found = count
    for start in range(0, count, ROWS):
        places = start + tl.arange(0, ROWS)
        same = tl.load(rows + places, mask=places < count, other=-1) == row
        found = tl.minimum(found, tl.min(tl.where(same & (places > after), places, count)))
    return found


@triton.jit
def _observe(scores, label, classes, across, CLASSES: tl.constexpr):
    """Return the logarithm of the label's probability, by how much its logit leads, and the first two classes.

    The second is the best that is not the label's. Of equal logits the first class wins.
    """
    top = tl.full((), -float("inf"), tl.float64)
    second, winner, other = top, label * 0, label * 0
    for start in range(0, classes, CLASSES):
        columns = (start + tl.arange(0, CLASSES)).to(tl.int64)
        x = tl.load(scores + columns * across, mask=columns < classes, other=-float("inf")).to(tl.float64)
        best = tl.max(x)
        winner = tl.where(best > top, tl.min(tl.where(x == best, columns, classes)), winner)
        top = tl.maximum(top, best)
        x = tl.where(columns == label, -float("inf"), x)
        best = tl.max(x)
        other = tl.where(best > second, tl.min(tl.where(x == best, columns, classes)), other)
        second = tl.maximum(second, best)
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, classes, CLASSES):
        columns = (start + tl.arange(0, CLASSES)).to(tl.int64)
        x = tl.load(scores + columns * across, mask=columns < classes, other=-float("inf")).to(tl.float64)
        total += tl.sum(tl.exp(x - top))
    there = (label >= 0) & (label < classes)
    gold = tl.load(scores + label * across, mask=there, other=-float("inf")).to(tl.float64)
    return gold - top - tl.log(total), gold - second, winner, other
