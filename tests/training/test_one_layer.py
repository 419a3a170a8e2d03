"""A layer by kernels is what it is by torch: tried before it is used. Needs Triton, and a GPU or its interpreter."""

import pytest
from kernel_device import DEVICE, Nothing

from calmix.kernels import tried
from calmix.training.one_layer import Shape, check_of


@pytest.mark.parametrize("shape", [(32, 64, 2), (48, 80, 3), (64, 48, 1)], ids=str)
def test_layers_of_a_shape_are_tried_against_torch(shape: tuple[int, int, int]) -> None:
    assert tried(check_of(Shape(*shape), 32), DEVICE)


@pytest.mark.parametrize("length", [16, 64, 128])
def test_so_are_all_lengths_of_text(length: int) -> None:
    assert tried(check_of(Shape(32, 64, 2), length), DEVICE)


@pytest.mark.parametrize("kernel", ["add_norm", "add_norm_back", "gelu", "gelu_back", "totals"])
def test_kernels_that_do_nothing_are_found_out(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import layers as kernels

    monkeypatch.setattr(kernels, kernel, Nothing())
    assert not tried(check_of(Shape(32, 64, 2), 32), DEVICE)
