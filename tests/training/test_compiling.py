"""Kernels are tried at the same time before the first step of a run asks for them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from calmix.dynamics import noting
from calmix.mixing import fused
from calmix.models import encoding, load_for_training
from calmix.training import batches, compiling, fusing, layers


def asked_for(model: nn.Module, device: str, *, half: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []
    monkeypatch.setattr(compiling, "try_together", lambda checks, _device: asked.extend(checks))
    data: Any = SimpleNamespace(widths=lambda: {7, 24, 40, 48, 300}, classes=3)
    compiling.compile_kernels(model, data, torch.device(device), half=half)
    return asked


@pytest.mark.parametrize(("kind", "more"), [("bert", 4), ("roberta", 3), ("distilbert", 0)])
def test_those_that_a_model_can_use_are_tried(
    kind: str, more: int, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_for_training(str(checkpoint(kind, heads=1)), label_names=tiny.LABELS)
    asked = asked_for(model, "cuda", half=True, monkeypatch=monkeypatch)
    assert {noting.agrees_with_torch, batches.agrees_with_torch, encoding.agrees_with_torch} < set(asked)
    assert fusing.agrees_with_torch in asked
    assert fused.losses_check(3) in asked
    assert len(asked) == 5 + more
    lengths = [check.args[1] for check in layers.checks_for(model, (7, 24, 40, 48, 300))]  # type: ignore[attr-defined]
    assert lengths == ([16, 32, 64] if more else [])
    assert {*layers.checks_for(model, (7, 24, 40, 48, 300))} <= set(asked)


def test_in_float32_the_weights_are_updated_by_torch(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_for_training(str(checkpoint("bert", heads=1)), label_names=tiny.LABELS)
    assert len(asked_for(model, "cuda", half=False, monkeypatch=monkeypatch)) == 4


def test_processors_have_none(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_for_training(str(checkpoint("bert")), label_names=tiny.LABELS)
    assert asked_for(model, "cpu", half=True, monkeypatch=monkeypatch) == []
