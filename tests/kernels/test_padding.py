"""One kernel cuts what torch cuts. Needs Triton, and a GPU or its interpreter: skipped without."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from kernel_device import DEVICE, ON_GPU

from calmix.kernels import tried, usable
from calmix.models import Packed, encode, encoding


def assert_the_same(packed: Packed, rows: torch.Tensor, width: int, choices: int | None = None) -> None:
    packed, rows = packed.to(DEVICE), rows.to(DEVICE)
    ours, torchs = (cut(packed, rows, width, choices) for cut in (encoding._by_kernel, encoding._by_torch))
    assert list(ours) == list(torchs)
    for name, wanted in torchs.items():
        assert ours[name].dtype == torch.int64
        assert torch.equal(ours[name], wanted), name


@pytest.mark.parametrize(("architecture", "kind"), [("bert", "text"), ("bert", "pair"), ("roberta", "pair")])
@pytest.mark.parametrize("width", [1, 24, 131])
def test_a_batch_is_that_of_torch(architecture: str, kind: str, width: int) -> None:
    packed = encode(tiny.examples(20, kind=kind), tiny.tokenizer(architecture), max_length=64)
    assert_the_same(packed, torch.tensor([7, 3, 19, 0, 3]), width)


@pytest.mark.parametrize("count", [2, 4])
def test_a_batch_of_choices_is_that_of_torch(count: int) -> None:
    packed = encode(tiny.examples(12, kind="choices", counts=(2, 3, 4)), tiny.tokenizer("bert"), max_length=64)
    assert packed.counts is not None
    assert_the_same(packed, torch.from_numpy(np.flatnonzero(packed.counts == count))[:3], 32, count)


def test_rows_may_be_every_second_of_more() -> None:
    packed = encode(tiny.examples(20), tiny.tokenizer("bert"), max_length=64)
    assert_the_same(packed, torch.tensor([4, 0, 9, 1, 17])[::2], 16)
    assert_the_same(packed, torch.tensor([4, 0, 9])[1:], 16)  # and begin anywhere


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_pack_on_a_gpu_is_cut_as_in_main_memory() -> None:
    packed = encode(tiny.examples(20, kind="pair"), tiny.tokenizer("bert"), max_length=64)
    rows = torch.tensor([4, 0, 9])
    there, here = packed.to(DEVICE).batch(rows.to(DEVICE), width=40), packed.batch(rows, width=40)
    assert usable(encoding.agrees_with_torch, there["input_ids"].device)
    for name, wanted in here.items():
        assert torch.equal(there[name].cpu(), wanted)


def works() -> bool:
    return tried(encoding.agrees_with_torch, DEVICE)  # not what was found before


def test_the_kernel_is_tried_before_it_is_used() -> None:
    assert works()


def test_a_kernel_that_does_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import padding

    right = padding.pad

    class Wrong:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*args: Any, BLOCK: int) -> None:
                right[grid](*args, BLOCK=BLOCK)
                args[6].flatten()[-1:].add_(1)

            return launch

    monkeypatch.setattr(padding, "pad", Wrong())
    assert not works()
