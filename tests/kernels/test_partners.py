"""One compiled kernel does for batches of all sizes; whom it finds is tested with `mixing.fused`."""

import pytest
import torch
from kernel_device import DEVICE, ON_GPU

from calmix.kernels.partners import partners


def launch(rows: int, *, size: int | None = None, by_head: bool = False, at: int = 0) -> torch.Tensor:
    """Return what is written for a batch of five classes, with a number before and after it that is not to change."""
    generator = torch.Generator().manual_seed(0)
    logits, targets = (torch.rand(rows, 5, generator=generator).to(DEVICE) for _ in range(2))
    hidden = torch.rand(at + rows * 70, generator=generator).to(DEVICE)[at:]  # beginning anywhere in memory
    sides = (torch.arange(at + rows, device=DEVICE) % 2)[at:]
    out = torch.full((2 * rows + 2,), -7, device=DEVICE)
    sizes = {"COLUMNS": 8, "ROWS": 8, "FEATURES": 64, "BY_HEAD": by_head}
    partners[(rows,)](logits, targets, hidden, sides, out[1:], 5, 70, rows, size or rows, **sizes)
    return out


@pytest.mark.parametrize("by_head", [False, True])
def test_everybody_has_two_partners_of_the_other_side_and_of_his_run(by_head: bool) -> None:
    out = launch(20, size=10, by_head=by_head)
    assert out[0] == out[-1] == -7
    found, rows = out[1:-1].view(2, 20), torch.arange(20, device=DEVICE)
    assert ((found + rows) % 2 == 1).all()
    assert (found // 10 == rows // 10).all()


@pytest.mark.skipif(not ON_GPU, reason="kernels are compiled for a CUDA device")
def test_a_batch_of_any_size_anywhere_in_memory_needs_no_other_kernel() -> None:
    for by_head in (False, True):
        launch(16, by_head=by_head)
        before = len(partners.device_caches[0][0])
        for rows, at in ((1, 0), (17, 1), (100, 3)):
            launch(rows, by_head=by_head, at=at)
        assert len(partners.device_caches[0][0]) == before
