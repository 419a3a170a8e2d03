"""Weights in float32, trained through copies in lower precision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from calmix.models import encode, load_for_training
from calmix.training import lowering
from calmix.training.branching import Branch
from calmix.training.layers import Layers
from calmix.training.layout import stretch_for
from calmix.training.lowering import Lowered


def network(checkpoint: Callable[..., Path], architecture: str = "bert", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model, _ = load_for_training(str(checkpoint(architecture)), label_names=tiny.LABELS)
    return model.eval()


def inputs(checkpoint: Callable[..., Path], rows: int = 4) -> dict[str, torch.Tensor]:
    _, tokenizer = load_for_training(str(checkpoint("bert")), label_names=tiny.LABELS)
    packed = encode(tiny.examples(rows), tokenizer, max_length=32)
    return packed.batch(torch.arange(rows), width=16)


def test_copies_in_float32_give_the_logits_and_gradients_of_the_model_itself(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint), inputs(checkpoint)
    expected = model(**batch).logits
    expected.square().sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    lowered = Lowered([model], dtype=torch.float32)
    logits = lowered(**batch).logits
    assert torch.equal(logits, expected)
    logits.square().sum().backward()
    assert all(p.grad is None for p in model.parameters())
    lowered.hand_over()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == set(gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient)
    assert all(copy.grad is None for copy in lowered.copies.values())


def test_a_penalty_on_the_weights_themselves_counts(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint), inputs(checkpoint)

    def penalty() -> torch.Tensor:
        return sum(p.square().sum() for p in model.parameters())  # type: ignore[return-value]

    (model(**batch).logits.sum() + penalty()).backward()
    wanted = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    lowered = Lowered([model], dtype=torch.float32)
    for _ in range(2):
        (lowered(**batch).logits.sum() + penalty()).backward()
        found = lowered.gradients()
        assert set(found) == set(wanted)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name])
        assert all(p.grad is None for p in model.parameters())


def test_gradients_can_be_differentiated_themselves(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint), inputs(checkpoint)
    (wanted,) = torch.autograd.grad(model(**batch).logits.square().sum(), model.classifier.weight, create_graph=True)
    wanted.square().sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    lowered = Lowered([model], dtype=torch.float32, branch=Branch())
    for _ in range(2):  # gradients have a branch from the second step on
        copy = lowered.copies["classifier.weight"]
        (found,) = torch.autograd.grad(lowered(**batch).logits.square().sum(), copy, create_graph=True)
        found.square().sum().backward()
        torch.testing.assert_close(found, wanted)
        given = lowered.gradients()
        assert given.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(given[name], gradient)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_every_architecture_runs_in_bf16_and_comes_close(architecture: str, checkpoint: Callable[..., Path]) -> None:
    model = network(checkpoint, architecture)
    batch = inputs(checkpoint)
    if architecture in ("roberta", "distilbert", "mpnet", "modernbert", "llama"):
        batch.pop("token_type_ids", None)
    lowered = Lowered([model])
    logits = lowered(**batch).logits
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), model(**batch).logits, rtol=0.1, atol=0.05)
    logits.float().sum().backward()
    lowered.hand_over()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())


def test_copies_follow_the_weights_when_refreshed(checkpoint: Callable[..., Path]) -> None:
    model = network(checkpoint)
    lowered = Lowered([model])
    with torch.no_grad():
        next(model.parameters()).fill_(0.5)
    name = next(iter(lowered.copies))
    assert not torch.equal(lowered.copies[name].float(), model.get_parameter(name))
    lowered.refresh()
    assert torch.equal(lowered.copies[name].float(), model.get_parameter(name))
    assert lowered.copies[name].requires_grad


def test_stacked_models_keep_their_own_weights_and_get_their_own_gradients(checkpoint: Callable[..., Path]) -> None:
    batch = inputs(checkpoint)
    models = [network(checkpoint, seed=seed) for seed in range(3)]
    expected, gradients = [], []
    for model in models:
        expected.append(model(**batch).logits)
        expected[-1].square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        model.zero_grad(set_to_none=True)
    lowered = Lowered(models, dtype=torch.float32)
    logits = lowered(**{name: value.repeat(3, 1) for name, value in batch.items()}).logits
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-4, atol=1e-5)
    logits.square().sum().backward()
    lowered.hand_over()
    for model, own, before in zip(models, gradients, expected, strict=True):
        assert torch.equal(model(**batch).logits, before)
        for name, gradient in own.items():
            torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-3, atol=1e-5)
    with torch.no_grad():  # an update of one is an update of its copy, and of nobody else's
        models[1].get_parameter("classifier.weight").fill_(2.0)
    lowered.refresh()
    assert (lowered.copies["classifier.weight"] == 2.0).flatten(1).all(1).tolist() == [False, True, False]


def test_gradients_have_a_home_where_torch_takes_them_as_they_are(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of others it makes copies, which do not wait for what is computed on another stream."""
    monkeypatch.setattr(lowering, "capturing", lambda: True)
    monkeypatch.setattr(Layers, "serves", lambda *_: True)
    models = [load_for_training(str(checkpoint("bert", heads=1)), label_names=tiny.LABELS)[0] for _ in range(2)]
    lowered = Lowered(models, dtype=torch.float32)
    lowered.stretch, lowered.once = stretch_for(lowered.copies), True
    for name, copy in lowered.copies.items():
        home = lowered.home(copy)
        among_others = any(part in name for part in ("query", "key", "value"))
        assert (home.untyped_storage().data_ptr() == lowered.stretch.data_ptr()) != among_others
        _Given.apply(copy, home).sum().backward()  # type: ignore[no-untyped-call]
        assert copy.grad is not None
        assert copy.grad.data_ptr() == home.data_ptr(), name
        assert lowered.home(copy).untyped_storage().data_ptr() != lowered.stretch.data_ptr()  # which is taken


class _Given(torch.autograd.Function):
    """Has a gradient that lies where it is told."""

    @staticmethod
    def forward(ctx: Any, copy: torch.Tensor, home: torch.Tensor) -> torch.Tensor:
        ctx.home = home
        return copy.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.home.copy_(upstream[0]).detach(), None


def test_weights_used_twice_are_noticed(checkpoint: Callable[..., Path]) -> None:
    batch, lowered = inputs(checkpoint), Lowered([network(checkpoint)])
    for forwards, once in ((1, True), (2, False), (1, False)):  # for good: the next may be of the other kind
        for _ in range(forwards):
            lowered(**batch).logits.sum().backward()
        lowered.hand_over()
        assert lowered.once is once


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_models_that_cannot_share_a_forward_are_told_from_those_that_can(
    architecture: str, checkpoint: Callable[..., Path]
) -> None:
    batch = inputs(checkpoint)
    if architecture in ("roberta", "distilbert", "mpnet", "modernbert", "llama"):
        batch.pop("token_type_ids", None)
    model, other = network(checkpoint, architecture), network(checkpoint, architecture, seed=1)
    model.train()
    agree = Lowered([model, other], dtype=torch.float32).agrees(batch)
    assert agree is (architecture in ("bert", "roberta", "distilbert", "electra", "modernbert"))
    assert model.training


def test_batch_norm_keeps_its_own_weights_and_statistics(image_checkpoint: Callable[..., Path]) -> None:
    from calmix.models import load_trained

    model, _ = load_trained(image_checkpoint("convnet"))
    batch = {"pixel_values": torch.randn(8, 3, tiny.SIDE, tiny.SIDE)}
    expected = model.train()(**batch).logits
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    lowered = Lowered([model])
    lowered.refresh()
    logits = lowered(**batch).logits
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)
    assert any(not torch.equal(buffer, statistics[name]) for name, buffer in model.named_buffers())
    assert all(buffer.dtype in (torch.float32, torch.int64) for buffer in model.buffers())
    logits.float().square().sum().backward()
    lowered.hand_over()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    assert all(p.grad is not None and p.grad.stride() == p.stride() for p in model.parameters())
