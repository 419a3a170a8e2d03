"""One kernel records what torch records. Needs Triton, and a GPU or its interpreter: skipped without."""

import pytest
import torch
from kernel_device import DEVICE, ON_GPU, Nothing
from torch import Tensor

from calmix.dynamics import Recorder, noting
from calmix.kernels import tried, usable


class Both:
    """The columns of some samples, written by the kernel and by torch: there sums of copies keep their order."""

    def __init__(self, samples: int) -> None:
        before = torch.tensor(noting.NOTES_BEFORE, dtype=torch.float64).repeat(samples + 1, 1)
        self.theirs = torch.zeros_like(before), before
        self.ours = tuple(columns.to(DEVICE, copy=True) for columns in self.theirs)

    def note(self, logits: Tensor, labels: Tensor, rows: Tensor) -> None:
        noting.note(*self.theirs, logits, labels, rows)
        noting.note_by_kernel(*self.ours, logits.to(DEVICE), labels.to(DEVICE), rows.to(DEVICE))

    def check(self) -> None:
        exact = {"count", "right", "forgotten", "label", "first_right", "last_right", "predicted", "rival"}
        for names, mine, wanted in zip((noting.SUMS, noting.NOTES), self.ours, self.theirs, strict=True):
            for name, one, other in zip(names, mine[1:].cpu().unbind(1), wanted[1:].unbind(1), strict=True):
                if name in exact:
                    assert torch.equal(one, other), name
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, equal_nan=True, msg=name)


@pytest.mark.parametrize(
    ("classes", "samples", "size", "dtype"),
    [
        (3, 4, 9, torch.float32),
        (3, 3, 7, torch.bfloat16),
        (1, 4, 6, torch.float32),
        (2, 3, 8, torch.float64),
        (300, 5, 6, torch.float32),
    ],
)
def test_columns_are_those_of_torch(classes: int, samples: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(classes)
    both = Both(samples)
    for _ in range(4):
        # Halves, so that some logits are equal: of these the first class is the prediction, or the rival.
        logits = (4 * torch.randn(size, classes, generator=generator)).round().div(2).to(dtype)
        labels = torch.randint(-1, classes, (size,), generator=generator)
        both.note(logits, labels, torch.randint(-1, samples, (size,), generator=generator))
        both.check()
    assert both.theirs[0][1:, 0].max() > 4  # some samples had copies


def test_choices_that_do_not_exist_and_numbers_that_are_not_are_left_out() -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor(
        [[1.0, 2.0, -inf], [-inf, 1.0, 0.0], [0.5, nan, 0.0], [0.5, inf, 0.0], [3.0, -inf, -inf], [-inf] * 3, [0.0] * 3]
    )
    for labels in ([0] * 7, [1] * 7):
        both = Both(8)
        both.note(logits, torch.tensor(labels), torch.arange(7))
        both.note(logits.flip(0), torch.tensor(labels), torch.zeros(7, dtype=torch.int64))
        both.check()


def test_more_rows_than_are_looked_at_at_a_time_find_their_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    size = noting._ROWS + 5
    rows = torch.full((size,), -1)
    rows[[0, 3, noting._ROWS, size - 1]] = torch.tensor([1, 0, 1, 0])
    both = Both(2)
    both.note(torch.randn(size, 2, generator=generator), torch.ones(size, dtype=torch.int64), rows)
    both.check()
    assert both.theirs[0][1:, 0].tolist() == [2, 2]


def test_a_batch_may_be_part_of_another_tensor() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 12, generator=generator).T[1::2, 1:]
    labels, rows = torch.tensor([0, 9, 1, 9, 2, 9, 0, 9, 1, 9, 2, 9])[::2], torch.tensor([9, 0, 1, 2, 0, 1, 3])[1:]
    both = Both(4)
    both.note(logits, labels, rows)
    both.check()


def test_rows_and_labels_beyond_the_last_write_nowhere() -> None:
    both = Both(2)
    written = [columns.clone() for columns in both.ours]
    rows, labels = torch.tensor([2, 7, 0], device=DEVICE), torch.tensor([0, 1, 2], device=DEVICE)
    noting.note_by_kernel(*both.ours, torch.zeros(3, 2, device=DEVICE), labels, rows)
    assert all(torch.equal(one, other) for one, other in zip(both.ours, written, strict=True))


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_captured_update_on_a_gpu_records_what_a_processor_does() -> None:
    generator = torch.Generator().manual_seed(0)
    there, here = Recorder(30, device=DEVICE), Recorder(30)
    labels = torch.randint(3, (30,), generator=generator)
    logits, rows = torch.zeros(16, 3, device=DEVICE), torch.full((16,), -1, device=DEVICE)
    gold = labels.to(DEVICE)
    there.update(logits, gold[rows], rows)
    assert usable(noting.agrees_with_torch, there._sums.device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.update(logits, gold[rows], rows)
    for _ in range(20):
        new, places = torch.randn(16, 3, generator=generator), torch.randint(-1, 30, (16,), generator=generator)
        here.update(new, labels[places], places)
        logits.copy_(new)
        rows.copy_(places)
        graph.replay()
    for recorder in (there, here):
        recorder.end_epoch()
    for name, wanted in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), wanted, rtol=1e-12, atol=1e-12, equal_nan=True)


def works() -> bool:
    return tried(noting.agrees_with_torch, DEVICE)  # not what was found before


def test_the_kernel_is_tried_before_it_is_used_and_draws_nothing_of_anybodys() -> None:
    before = torch.get_rng_state()
    assert works()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_kernel_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import recording

    monkeypatch.setattr(recording, "record", Nothing())
    assert not works()
