"""What follows the logits of a batch in a few kernels, where these serve: losses, their gradient, and partners."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calmix.dynamics import batch_partners, cosine, head_cosine, residual, saliency_map
from calmix.kernels import Agrees, usable

if TYPE_CHECKING:
    from calmix.mixing.losses import Mixes

__all__ = ["losses", "losses_check", "partners", "serves_losses", "serves_partners"]

# Kernels are compiled for so many classes at most; and how many numbers a run's rows may have, to be looked at by each.
_COLUMNS, _NUMBERS = (8, 32, 128), 2**15
# How many other rows, and of them features, a program looks at at a time; and how many features a run's rows may have.
_ROWS, _FEATURES, _MOST_FEATURES = 64, 64, 2**17
_READ = (torch.float32, torch.bfloat16, torch.float16)

_Agrees = Callable[[int, torch.device], bool]
"""Number of columns, device → whether kernels compiled for them do what torch does."""


def serves_losses(logits: Tensor, targets: Tensor, runs: int = 1) -> bool:
    """Return whether kernels can be used for the losses of a batch and their gradient."""
    return _serves(_losses_agree, logits, targets, runs)


def serves_partners(logits: Tensor, targets: Tensor, runs: int = 1, hidden: Tensor | None = None) -> bool:
    """Return whether a kernel can be used to find partners."""
    if hidden is None:
        return _serves(_partners_agree, logits, targets, runs)
    fits = hidden.dim() == 2 and len(hidden) == len(logits) and hidden.numel() // runs <= _MOST_FEATURES
    return fits and hidden.dtype in _READ and _serves(_head_partners_of(hidden.dtype), logits, targets, runs)


def _serves(agrees: _Agrees, logits: Tensor, targets: Tensor, runs: int) -> bool:
    """Return whether a batch is in float32 on a GPU, and not too large, and kernels do there what torch does."""
    classes = logits.shape[-1]
    return (
        logits.is_cuda
        and logits.get_device() == torch.cuda.current_device()  # where Triton launches, wherever the tensors are
        and logits.dtype == targets.dtype == torch.float32
        and logits.shape == targets.shape
        and logits.dim() == 2
        and not targets.requires_grad
        and 0 < classes <= _COLUMNS[-1]
        and 0 < len(logits) // runs * _columns(classes) <= _NUMBERS
        and usable(_check_of(agrees, _columns(classes)), logits.device)
    )


def losses_check(classes: int) -> Agrees | None:
    """Return what tries the kernels for the losses of batches of so many classes; None if there are none."""
    return _check_of(_losses_agree, _columns(classes)) if 0 < classes <= _COLUMNS[-1] else None


@cache
def _check_of(agrees: _Agrees, columns: int) -> Agrees:
    """Return a check with so many columns; the same each time it is asked for."""
    return partial(agrees, columns)


def losses(
    logits: Tensor,
    targets: Tensor,
    mixes: Mixes | None,
    clean: float,
    smoothing: float,
    class_weights: Tensor | None,
    runs: int,
) -> Tensor:
    """Return `mixing.losses.row_losses`, by one kernel, and another for the gradient."""
    found: Tensor = _Losses.apply(logits, targets, mixes, clean, smoothing, class_weights, runs)  # type: ignore[no-untyped-call]
    return found


class _Losses(torch.autograd.Function):
    """What a row's loss is, and its gradient: the sum of its own slopes and of those of the rows it is partner of.

    Each row looks for these by itself: nothing is added atomically, so the same bits come out every time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        mixes: Mixes | None,
        clean: float,
        smoothing: float,
        class_weights: Tensor | None,
        runs: int,
    ) -> Tensor:
        from calmix.kernels import losses as kernels

        logits, targets = logits.contiguous(), targets.contiguous()
        rows, classes = logits.shape
        # What is not there is told by a number, and not looked at.
        partner, own, weight = torch.empty(0, dtype=torch.int64, device=logits.device), logits, logits
        count = by_mix = by_row = 0
        if mixes is not None:
            partner, own = mixes.partner.reshape(-1, rows).contiguous(), mixes.own.reshape(-1, rows)
            count = len(partner)
            if mixes.weight is not None:
                weight = mixes.weight
                by_mix, by_row = (0, weight.stride(0)) if mixes.partner.dim() == 1 else (weight.stride(0), 0)
        out, slopes = logits.new_empty(rows), logits.new_empty(1 + count, rows, classes)
        kernels.losses[(rows,)](
            logits,
            targets,
            logits if class_weights is None else class_weights,
            partner,
            own,
            weight,
            out,
            slopes,
            classes,
            rows,
            count,
            int(class_weights is not None),
            int(weight is not logits),
            own.stride(0),
            own.stride(1),
            by_mix,
            by_row,
            float(clean),
            *_smoothed(smoothing, classes),
            *_smoothed(0.0 if mixes is None else mixes.smoothing, classes),
            COLUMNS=_columns(classes),
            num_warps=1,
        )
        ctx.save_for_backward(slopes, partner)
        ctx.count, ctx.size = count, rows // runs
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from calmix.kernels import losses as kernels

        slopes, partner = ctx.saved_tensors
        _, rows, classes = slopes.shape
        out = torch.empty_like(slopes[0])
        # The gradient of a mean or a sum is one number for all rows, which need not be written out for each.
        told = (classes, rows, ctx.size, ctx.count, upstream.stride(0))
        kernels.gradients[(rows,)](upstream, slopes, partner, out, *told, COLUMNS=_columns(classes), ROWS=_ROWS)
        return out, *(None,) * 6


def partners(logits: Tensor, targets: Tensor, sides: Tensor, runs: int = 1, hidden: Tensor | None = None) -> Tensor:
    """Return the most and the least similar row of the other side, [2, rows], by one kernel.

    They are compared by |p − y|, or with `hidden` by the gradient of the weights of a head that read it.
    """
    from calmix.kernels import partners as kernels

    logits, targets, sides = logits.detach().contiguous(), targets.contiguous(), sides.to(torch.int64).contiguous()
    rows, classes = logits.shape
    read = logits if hidden is None else hidden.detach().contiguous()
    out = torch.empty(2, rows, dtype=torch.int64, device=logits.device)
    columns = _columns(classes)
    kernels.partners[(rows,)](
        logits,
        targets,
        read,
        sides,
        out,
        classes,
        read.shape[-1],
        rows,
        rows // runs,
        COLUMNS=columns,
        ROWS=max(8, 256 // columns),
        FEATURES=_FEATURES,
        BY_HEAD=hidden is not None,
    )
    return out


@torch.enable_grad()
def _losses_agree(columns: int, device: torch.device) -> bool:
    """Return whether the losses and the gradient of mixes of two runs' rows are those of torch."""
    from calmix.mixing.losses import Mixes, by_torch

    logits, targets, generator = _batch(columns, device)
    partner = torch.tensor([[1, 2, 2, 4, 4, 3], [0, 0, 0, 5, 5, 5]], device=device)
    own, weight, upstream = (torch.rand(size, generator=generator, device=device) for size in ((2, 6), (2,), (6,)))
    class_weights = torch.rand(columns, generator=generator, device=device)

    def found(how: Callable[..., Tensor], dtype: torch.dtype, *runs: int) -> list[Tensor]:
        z, t, lam, w, c, up = (x.to(dtype) for x in (logits, targets, own, weight, class_weights, upstream))
        z.requires_grad_()
        outcomes = [
            how(z, t, None, 0.8, 0.1, None, *runs),
            how(z, t, Mixes(partner[0], lam[0], up, smoothing=0.2), 0.8, 0.0, c, *runs),
            how(z, t, Mixes(partner, lam, w), 0.8, 0.1, c, *runs),
        ]
        return [*outcomes, *(torch.autograd.grad(outcome, z, up)[0] for outcome in outcomes)]

    # In double precision: some have torch multiply matrices of float32 in less.
    pairs = zip(found(losses, torch.float32, 2), found(by_torch, torch.float64), strict=True)
    return all(torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-5) for ours, theirs in pairs)


def _partners_agree(columns: int, device: torch.device) -> bool:
    """Return whether the partners of two runs' rows by |p − y| are those that torch finds."""
    logits, targets, _ = _batch(columns, device)
    sides = torch.tensor([0, 1, 1, 1, 0, 0], device=device)
    theirs = batch_partners(cosine(saliency_map(logits, targets)), sides, 2)
    return torch.equal(partners(logits, targets, sides, 2), torch.stack(theirs))


@cache
def _head_partners_of(dtype: torch.dtype) -> _Agrees:
    """Return the check for what heads read in a precision, which has a kernel of its own; the same each time."""
    return partial(_head_partners_agree, dtype)


def _head_partners_agree(dtype: torch.dtype, columns: int, device: torch.device) -> bool:
    """Return whether the partners of two runs' rows by the head's gradient are those that torch finds."""
    logits, targets, generator = _batch(columns, device)
    hidden = torch.randn(6, _FEATURES + 6, generator=generator, device=device).to(dtype)
    sides = torch.tensor([0, 1, 1, 1, 0, 0], device=device)
    theirs = batch_partners(head_cosine(residual(logits, targets), hidden.float()), sides, 2)
    return torch.equal(partners(logits, targets, sides, 2, hidden), torch.stack(theirs))


def _batch(columns: int, device: torch.device) -> tuple[Tensor, Tensor, torch.Generator]:
    """Return logits and targets of six rows, and what drew them: nobody else's draws are to be others for it."""
    generator = torch.Generator(device).manual_seed(0)
    logits = 2 * torch.randn(6, columns, generator=generator, device=device)
    labels = torch.randint(columns, (6,), generator=generator, device=device)
    return logits, torch.nn.functional.one_hot(labels, columns).float(), generator


def _smoothed(amount: float, classes: int) -> tuple[float, float]:
    """Return what a class keeps of its mass, and gets of the others': see `targets.smooth`."""
    return (1.0, 0.0) if amount == 0 or classes == 1 else (1.0 - amount, amount / (classes - 1))


def _columns(classes: int) -> int:
    return next(columns for columns in _COLUMNS if classes <= columns)
