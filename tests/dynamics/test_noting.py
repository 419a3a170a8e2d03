"""Columns are written by torch, or by the kernel where it serves; that both write the same is tested in `kernels`."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calmix.dynamics import Recorder, noting


def test_rows_are_ordered_by_sample_and_the_last_copy_has_the_slot() -> None:
    sums, notes = torch.zeros(4, 8, dtype=torch.float64), torch.full((4, 8), -1.0, dtype=torch.float64)
    rows = torch.tensor([2, 0, 2, -1, 0])
    order, slot = noting.note(sums, notes, torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), rows)
    assert order.tolist() == [3, 1, 4, 0, 2]
    assert slot.tolist() == [0, 0, 1, 0, 3]
    assert sums[:, 0].tolist() == [1, 2, 0, 2]


@pytest.mark.parametrize(("wrong", "served"), [({}, True), ({"is_cuda": False}, False), ({"rows": 4097}, False)])
def test_the_kernel_is_asked_for_where_it_serves_alone(
    wrong: dict[str, Any], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(noting, "usable", lambda _agrees, device: asked.append(device) or True)
    case = {"is_cuda": True, "rows": 4096, **wrong}
    sums: Any = SimpleNamespace(is_cuda=case["is_cuda"], device="cuda:0")
    assert noting.one_kernel_notes(sums, torch.zeros(case["rows"])) is served
    assert bool(asked) is served


def test_logits_that_are_kept_are_those_of_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calmix.dynamics.recorder.one_kernel_notes", lambda *_: True)
    used: list[int] = []
    monkeypatch.setattr("calmix.dynamics.recorder.note_by_kernel", lambda *given: used.append(len(given)))
    for keep_logits in (False, True):
        recorder = Recorder(3, keep_logits=keep_logits)
        recorder.update(torch.eye(3), torch.arange(3), torch.arange(3))
        recorder.end_epoch()
        assert recorder.dynamics().observations.tolist() == [int(keep_logits)] * 3
    assert used == [5]
