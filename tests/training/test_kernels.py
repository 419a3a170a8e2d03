"""Kernels are compiled where there is a GPU; what they do is tested with `Fused`, which calls them."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels need a CUDA device")


def test_kernels_compile_on_a_gpu() -> None:
    pytest.importorskip("triton")
    from calmix.training.kernels import compiles

    assert compiles()


def test_where_nothing_can_be_compiled_nobody_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from calmix.training import kernels

    monkeypatch.setattr(kernels, "_double", None)
    assert not kernels.compiles()
