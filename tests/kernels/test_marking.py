"""One kernel marks what torch marks. Needs Triton, and a GPU or its interpreter: skipped without."""

from typing import Any

import pytest
import torch
from kernel_device import DEVICE, ON_GPU

from calmix.kernels import tried, usable
from calmix.training import batches


@pytest.mark.parametrize("classes", [1, 2, 3, 300])
def test_labels_are_marked_as_torch_marks_them(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(-1, classes, (20,), generator=generator).to(DEVICE)
    rows = torch.randint(20, (26,), generator=generator).to(DEVICE)
    for some in (rows, rows[::2], rows[1:4]):
        ours, torchs = (marked(labels, some, classes) for marked in (batches._marked_by_kernel, batches._marked))
        assert ours.dtype == torchs.dtype == torch.float32
        assert torch.equal(ours, torchs)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_targets_on_a_gpu_are_those_in_main_memory() -> None:
    packed: Any = None
    here = batches.TrainingSet(packed, torch.tensor([2, -1, 0, 1]), 3)
    there = batches.TrainingSet(packed, here.labels.to(DEVICE), 3)
    rows = torch.tensor([1, 3, 3, 0])
    found = there.targets_of(rows.to(DEVICE), None)
    assert usable(batches.agrees_with_torch, found.device)
    assert torch.equal(found.cpu(), here.targets_of(rows, None))


def works() -> bool:
    return tried(batches.agrees_with_torch, DEVICE)  # not what was found before


def test_the_kernel_is_tried_before_it_is_used() -> None:
    assert works()


def test_a_kernel_that_marks_all_classes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import marking

    class Wrong:
        def __getitem__(self, grid: Any) -> Any:
            return lambda labels, rows, out, *sizes, BLOCK: out.fill_(1)

    monkeypatch.setattr(marking, "mark", Wrong())
    assert not works()
