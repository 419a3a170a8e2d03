"""Embeddings by kernels of our own; in a whole model they are tested with its layers. Skipped without Triton."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from kernel_device import DEVICE, Nothing

from calmix.kernels import tried
from calmix.models import load_for_training
from calmix.training import embeddings


@pytest.mark.parametrize("size", [16, 40])
def test_they_are_tried_against_torch(size: int) -> None:
    assert tried(embeddings._check_of(size), DEVICE)


@pytest.mark.parametrize("kernel", ["embed", "embed_back", "collect"])
def test_kernels_that_do_nothing_are_found_out(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import embedding

    monkeypatch.setattr(embedding, kernel, Nothing())
    assert not tried(embeddings._check_of(16), DEVICE)


@pytest.mark.parametrize(("kind", "size"), [("bert", 16), ("electra", 8), ("roberta", None), ("distilbert", None)])
def test_those_that_count_positions_from_the_first_token_are_served(
    kind: str, size: int | None, checkpoint: Callable[..., Path]
) -> None:
    model, _ = load_for_training(str(checkpoint(kind)), label_names=tiny.LABELS)
    assert embeddings._size_of(model) == size


def test_frozen_ones_are_not(checkpoint: Callable[..., Path]) -> None:
    model, _ = load_for_training(str(checkpoint("bert")), label_names=tiny.LABELS)
    model.get_input_embeddings().weight.requires_grad_(False)
    assert embeddings._size_of(model) is None
