import pytest
import torch

from calmix.dynamics import Recorder


def test_logits_are_kept_on_request_one_slice_an_epoch():
    recorder = Recorder(3, keep_logits=True)
    first, second = torch.randn(3, 2), torch.randn(2, 2)
    labels = torch.zeros(3, dtype=torch.int64)
    recorder.update(first, labels, torch.tensor([2, 0, 1]))
    recorder.end_epoch()
    recorder.update(second, labels[:2], torch.tensor([1, 1]))
    recorder.end_epoch()
    kept = recorder.logits()
    assert torch.equal(kept[0], first[[1, 2, 0]])
    assert torch.equal(kept[1, 1], second[1])
    assert kept[1, [0, 2]].isnan().all()


def test_logits_kept_by_two_processes_merge():
    whole, parts = Recorder(4, keep_logits=True), [Recorder(4, keep_logits=True) for _ in range(2)]
    for _ in range(3):
        logits, labels = torch.randn(4, 2), torch.zeros(4, dtype=torch.int64)
        whole.update(logits, labels, torch.arange(4))
        whole.end_epoch()
        for part, rows in zip(parts, (torch.tensor([0, 3]), torch.tensor([1, 2])), strict=True):
            part.update(logits[rows], labels[rows], rows)
            part.end_epoch()
    assert torch.equal(parts[0].merge(parts[1]).logits(), whole.logits())


def test_logits_that_were_not_kept_cannot_be_had():
    with pytest.raises(ValueError, match="keep_logits"):
        Recorder(2).logits()


def test_an_evaluation_pass_in_inference_mode_can_be_recorded():
    recorder = Recorder(2, keep_logits=True)
    for _ in range(2):
        with torch.inference_mode():
            recorder.update(torch.ones(2, 3), torch.tensor([0, 1]), torch.arange(2))
        recorder.end_epoch()
    assert recorder.logits().shape == (2, 2, 3)
    assert recorder.dynamics().observations.tolist() == [2, 2]
