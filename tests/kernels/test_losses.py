"""One compiled kernel does for batches of all sizes; what the kernels compute is tested with `mixing.fused`."""

import pytest
import torch
from kernel_device import DEVICE, ON_GPU

from calmix.kernels import losses


def launch(rows: int, *, mixes: int = 2, at: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is written for a batch of five classes, with a number before and after it that is not to change."""
    generator = torch.Generator().manual_seed(0)
    logits, targets = (torch.rand(rows, 5, generator=generator).to(DEVICE) for _ in range(2))
    # Beginning anywhere in memory.
    partner = torch.randint(rows, (at + 2 * rows,), generator=generator).to(DEVICE)[at:]
    own = torch.rand(2 * rows + at, generator=generator).to(DEVICE)[at:]
    out, slopes, gradient = (torch.full((n + 2,), -7.0, device=DEVICE) for n in (rows, 3 * rows * 5, rows * 5))
    told = (5, rows, mixes, 0, 0, rows, 1, 0, 0, 1.0, 1.0, 0.0, 0.9, 0.025)
    losses.losses[(rows,)](logits, targets, logits, partner, own, own, out[1:], slopes[1:], *told, COLUMNS=8)
    losses.gradients[(rows,)](own, slopes[1:], partner, gradient[1:], 5, rows, rows, mixes, 1, COLUMNS=8, ROWS=64)
    return out, slopes, gradient


@pytest.mark.parametrize("mixes", [0, 1, 2])
def test_exactly_what_belongs_to_the_batch_is_written(mixes: int) -> None:
    out, slopes, gradient = launch(4, mixes=mixes)
    for written, size in ((out, 4), (slopes, (1 + mixes) * 4 * 5), (gradient, 4 * 5)):
        assert written[0] == -7
        assert (written[1 : 1 + size] != -7).all()
        assert (written[1 + size :] == -7).all()


@pytest.mark.skipif(not ON_GPU, reason="kernels are compiled for a CUDA device")
def test_a_batch_of_any_size_anywhere_in_memory_needs_no_other_kernel() -> None:
    launch(16)
    before = [len(kernel.device_caches[0][0]) for kernel in (losses.losses, losses.gradients)]
    for rows, mixes, at in ((1, 2, 0), (16, 1, 1), (17, 0, 3), (100, 2, 5)):
        launch(rows, mixes=mixes, at=at)
    assert [len(kernel.device_caches[0][0]) for kernel in (losses.losses, losses.gradients)] == before
