"""Kernels are compiled where there is a GPU; what they do is tested with `Fused`, which calls them."""

import pytest
import torch

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels need a CUDA device")


@on_gpu
def test_even_weights_are_read_many_numbers_at_a_time() -> None:
    pytest.importorskip("triton")
    from calmix.kernels import updating

    lists = (torch.bfloat16, torch.int32, torch.int64)
    others = (torch.float64, torch.float32, torch.int8, torch.float32)
    made = updating.update.warmup(*lists, *others, 8, BLOCK=1024, TIMES=4, grid=(1,))
    assert "ld.global.v4" in made.asm["ptx"]
    assert "st.global.v4" in made.asm["ptx"]
