"""A batch of logits → the columns of a `Recorder`: by torch or, on a GPU, by one kernel."""

import torch
from torch import Tensor

from calmix.dynamics.observing import observe
from calmix.errors import InputError
from calmix.kernels import usable

__all__ = ["NOTES", "NOTES_BEFORE", "SUMS", "note", "note_by_kernel", "one_kernel_notes", "vote"]

# Two tensors of float64 columns, because a step is mostly the launching of kernels: one takes sums, the other is
# overwritten. In float64 counts are exact, and so are, for all that matters, medians and ranks at which regions are
# cut: thousands of easy samples differ by less than the rounding of a float32 sum over a long run.
SUMS = ("count", "margin", "offset", "square", "loss", "right", "forgotten", "rival_probability")
# `offset` and `square` are sums of p − shift and its square, where the shift is a sample's own first p: no
# cancellation, and a constant p has variance 0 exactly. `rival` and `rival_weight` are a weighted majority vote over
# the most probable other class in two numbers (Boyer & Moore).
NOTES = ("label", "shift", "last_loss", "first_right", "last_right", "predicted", "rival", "rival_weight")
NOTES_BEFORE = (-1.0, -1.0, 0.0, -1.0, -1.0, -1.0, -1.0, 0.0)

# How many rows and classes the kernel looks at at a time; and the most rows it is used for, as each looks for copies
# of itself among all others.
_ROWS, _CLASSES, _MOST = 256, 128, 4096


def note(sums: Tensor, notes: Tensor, logits: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Record a batch in the columns, as `Recorder.update` says; return an order of its rows, and the slot of each.

    Slot 0 takes what is not to be recorded, and what is overwritten by a later copy; sample i has slot i + 1.
    """
    if sums.device.type == "cpu" and int(labels.max()) >= logits.shape[1]:
        raise InputError(f"label {int(labels.max())}, but the logits have {logits.shape[1]} classes, counted from 0")
    seen = observe(logits, labels)
    slot = torch.where(seen.valid & (rows >= 0), rows + 1, 0)
    if sums.device.type == "cpu" and int(slot.max()) >= len(sums):
        raise IndexError(f"row {int(slot.max()) - 1} in a training set of {len(sums) - 1} samples")
    # Copies of a sample become neighbours, in the order of the batch.
    slot, order = slot.sort(stable=True)
    here = torch.arange(len(slot), device=sums.device)
    first = torch.searchsorted(slot, slot)
    # Where something is written rather than added, the last copy writes; the others go to slot 0.
    target = torch.where(torch.searchsorted(slot, slot, right=True) == here + 1, slot, 0)

    label, margin, gold, loss, right, predicted, rival, probability = torch.stack(seen[1:], 1)[order].unbind(1)
    _, shift, _, first_right, last_right, _, candidate, weight = notes[slot].unbind(1)
    new = shift < 0
    shift = torch.where(new, gold[first], shift)
    offset = gold - shift
    before = torch.where(first == here, last_right, right.roll(1))
    forgotten = before > right
    added = (torch.ones_like(gold), margin, offset, offset.square(), loss, right, forgotten.double(), probability)
    sums.index_add_(0, slot, torch.stack(added, 1))
    first_right = torch.where(new, right[first], first_right)
    written = (label, shift, loss, first_right, right, predicted, *vote(candidate, weight, rival, probability))
    notes.index_copy_(0, target, torch.stack(written, 1))
    return order, target


def vote(candidate: Tensor, weight: Tensor, rival: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Return candidate and weight after a vote: a class with over half of all weight is always the candidate."""
    agree = candidate == rival
    return (
        torch.where(agree | ((weight >= more) & (candidate >= 0)), candidate, rival),
        torch.where(agree, weight + more, (weight - more).abs()),
    )


def one_kernel_notes(sums: Tensor, rows: Tensor) -> bool:
    """Return whether `note_by_kernel` can be used for a batch."""
    return sums.is_cuda and len(rows) <= _MOST and usable(agrees_with_torch, sums.device)


def note_by_kernel(sums: Tensor, notes: Tensor, logits: Tensor, labels: Tensor, rows: Tensor) -> None:
    """Record a batch as `note` does, in one kernel; rows and labels that do not exist are not recorded.

    Copies of a sample are added in the order of the batch, where atomic additions would come in any.
    """
    from calmix.kernels.recording import record

    sizes = (len(rows), len(sums) - 1, logits.shape[1], *logits.stride())
    told = (logits, labels.contiguous(), rows.contiguous(), sums, notes)
    with torch.cuda.device_of(sums):  # type: ignore[no-untyped-call]
        # A product is rounded before it is added, as torch does it.
        record[(len(rows),)](*told, *sizes, ROWS=_ROWS, CLASSES=_CLASSES, num_warps=1, enable_fp_fusion=False)


def agrees_with_torch(device: torch.device) -> bool:
    """Return whether two batches, with copies, padding and a class that does not exist, are recorded the same way."""
    before = torch.tensor(NOTES_BEFORE, dtype=torch.float64, device=device).repeat(5, 1)
    mine, theirs = ((torch.zeros_like(before), before.clone()) for _ in range(2))
    generator = torch.Generator(device).manual_seed(0)  # nobody else's draws are to be others for it
    labels, rows = (torch.tensor(values, device=device) for values in ([0, 1, 2, 1, 0, -1, 1], [3, 1, 0, 1, 3, 2, -1]))
    for _ in range(2):
        logits = torch.randn(7, 3, generator=generator, device=device)
        logits[0, 2].fill_(-torch.inf)
        note_by_kernel(*mine, logits, labels, rows)
        note(*theirs, logits, labels, rows)
    return all(
        torch.allclose(ours[1:], wanted[1:], rtol=1e-12, atol=1e-12) for ours, wanted in zip(mine, theirs, strict=True)
    )
