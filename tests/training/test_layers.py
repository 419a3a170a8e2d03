"""Layers of encoders by kernels of our own. Needs Triton, and a GPU or its interpreter: skipped without."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from kernel_device import DEVICE, DTYPE, ON_GPU
from torch import Tensor, nn

from calmix.kernels import trying
from calmix.models import Site, anatomy, encode, load_for_training, rewriting, site_of_layer
from calmix.training import embeddings, layers, lowering
from calmix.training.branching import Branch
from calmix.training.embeddings import Embeddings
from calmix.training.layers import Layers
from calmix.training.layout import like, stretch_for
from calmix.training.lowering import Lowered

NEAR = {"rtol": 0.05, "atol": 0.03} if ON_GPU else {"rtol": 1e-4, "atol": 1e-5}
KINDS = ["bert", "roberta", "electra"]


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter do what a GPU would."""
    if not ON_GPU:
        monkeypatch.setattr(Layers, "serves", lambda model, *_: layers._shape_of(model) is not None)
        monkeypatch.setattr(Embeddings, "serves", lambda model, *_: embeddings._size_of(model) is not None)


def network(checkpoint: Callable[..., Path], kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model, _ = load_for_training(str(checkpoint(kind, heads=1)), label_names=tiny.LABELS)
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms are not 0 and 1
            weight.add_(0.1 * torch.randn(weight.shape))
    return model.eval().to(DEVICE)


def batch_for(checkpoint: Callable[..., Path], kind: str, rows: int = 6, width: int = 16) -> dict[str, Tensor]:
    _, tokenizer = load_for_training(str(checkpoint(kind, heads=1)), label_names=tiny.LABELS)
    packed = encode(tiny.examples(rows), tokenizer, max_length=32)
    return {name: value.to(DEVICE) for name, value in packed.batch(torch.arange(rows), width=width).items()}


def passed(lowered: Lowered, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    logits = lowered(**batch).logits.float()
    (logits * torch.linspace(-1, 1, logits.numel(), device=DEVICE).view_as(logits)).sum().backward()
    return logits.detach(), lowered.gradients()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runs", [1, 2])
def test_logits_and_gradients_are_those_of_transformers_own_layers(
    kind: str, runs: int, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, batch = [network(checkpoint, kind, seed) for seed in range(runs)], batch_for(checkpoint, kind)
    ours = Lowered(models, dtype=DTYPE)
    assert ours.layers is not None
    assert (ours.embeddings is not None) == (kind != "roberta")
    with monkeypatch.context() as plain:
        plain.setattr(Layers, "serves", lambda *_: False)
        theirs = Lowered(models, dtype=DTYPE)
    assert theirs.layers is None
    (logits, gradients), (wanted, others) = passed(ours, batch), passed(theirs, batch)
    torch.testing.assert_close(logits, wanted, **NEAR)
    assert set(gradients) == set(others)
    for name, gradient in others.items():
        far = (gradients[name].float() - gradient.float()).norm()
        assert far <= NEAR["rtol"] * gradient.float().norm() + NEAR["atol"], name


def test_dropout_leaves_its_share_and_the_backward_pass_drops_what_the_forward_dropped(
    checkpoint: Callable[..., Path],
) -> None:
    if ON_GPU:
        pytest.skip("differences of bf16 numbers say nothing")
    model, batch = network(checkpoint, "bert").train(), batch_for(checkpoint, "bert")
    lowered = Lowered([model], dtype=torch.float32)

    def loss() -> Tensor:
        torch.manual_seed(3)
        return lowered(**batch).logits.double().square().sum()

    loss().backward()
    gradients = lowered.gradients()
    parts = ("attention.self.key.weight", "attention.output.LayerNorm.weight", "output.dense.bias")
    for name in ("bert.embeddings.word_embeddings.weight", *(f"bert.encoder.layer.0.{part}" for part in parts)):
        copy, gradient = lowered.copies[name], gradients[name]
        step = 1e-3 * gradient / gradient.norm()
        with torch.no_grad():
            copy += step
            above = loss()
            copy -= 2 * step
            below = loss()
            copy += step
        slope = float(above - below) / 2e-3
        assert slope == pytest.approx(float(gradient.norm()), rel=0.02), name


def test_texts_that_are_too_long_take_the_ordinary_way(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_LONGEST", 8)
    lowered, batch = Lowered([network(checkpoint, "bert")], dtype=DTYPE), batch_for(checkpoint, "bert")
    assert lowered.length_for(8) == 16
    assert lowered.length_for(16) is None
    monkeypatch.setattr(Layers, "used", None)  # would fail
    assert lowered(**batch).logits.shape == (6, len(tiny.LABELS))


@pytest.mark.parametrize("kind", ["square", "shares"])
def test_masks_mean_what_they_mean_to_transformers(kind: str, checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    mask = batch["attention_mask"]
    if kind == "square":  # each token of a text sees what is before it
        order = torch.ones(16, 16, dtype=torch.bool, device=DEVICE).tril()
        batch["attention_mask"] = mask[:, None, None].bool() & order
    else:
        batch["attention_mask"] = 0.5 * mask
    found, wanted = Lowered([model], dtype=DTYPE)(**batch).logits, model(**batch).logits
    torch.testing.assert_close(found.float(), wanted, **NEAR)


def test_vectors_for_other_tokens_than_there_are_are_refused(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    site = site_of_layer(anatomy(model), 1)
    with (
        rewriting(model, site, lambda x: x[:, :8]),
        pytest.raises(ValueError, match=r"shape \(6, 8, \d+\) for tokens of \(6, 16\)"),
    ):
        Lowered([model], dtype=DTYPE)(**batch)


def test_batches_are_no_larger_than_places_in_memory_can_be_counted(checkpoint: Callable[..., Path]) -> None:
    lowered = Lowered([network(checkpoint, "bert")], dtype=DTYPE)
    assert lowered.layers is not None
    numbers = 3 * tiny.WIDTH  # of a token
    least = -(-(2**31) // (numbers * 128))
    assert lowered.layers.fit(torch.empty(least - 1, 128, device="meta"))
    assert not lowered.layers.fit(torch.empty(least, 128, device="meta"))


def test_a_length_whose_kernels_do_not_work_takes_the_ordinary_way(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(layers, "usable", lambda check, _device: bool(asked.append(check)) or check.args[1] < 64)
    lowered = Lowered([network(checkpoint, "bert")], dtype=DTYPE)
    asked.clear()  # on a GPU one was tried already
    assert [lowered.length_for(width) for width in (5, 32)] == [16, 32]
    assert {lowered.length_for(width) for width in (33, 64, 128, 129, 33)} == {None}
    assert {check.args[1] for check in asked} == {16, 32, 64, 128}


def test_no_length_is_tried_during_a_capture(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = Lowered([network(checkpoint, "bert")], dtype=DTYPE)
    monkeypatch.setattr(trying, "_found", {})
    assert lowered.length_for(16) == 16
    monkeypatch.setattr(trying, "capturing", lambda: True)
    monkeypatch.setattr(trying, "tried", None)  # would fail
    assert [lowered.length_for(width) for width in (8, 17)] == [16, None]


@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_edited_on_the_way_is_what_the_next_layer_reads(layer: int, checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    lowered, site = Lowered([model], dtype=DTYPE), site_of_layer(anatomy(model), layer)
    with rewriting(model, site, lambda x: x.flip(0)):
        wanted = model(**batch).logits
        found = lowered(**batch).logits
    torch.testing.assert_close(found.float(), wanted, **NEAR)
    assert not torch.allclose(lowered(**batch).logits.float(), wanted, **NEAR)


def test_hooks_inside_a_layer_are_heard(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    lowered, heard = Lowered([model], dtype=DTYPE), []
    plain = lowered(**batch).logits
    inside = model.get_submodule(anatomy(model).layers[0]).get_submodule("attention.output")
    handle = inside.register_forward_hook(lambda *_: heard.append(True))
    torch.testing.assert_close(lowered(**batch).logits, plain, **NEAR)
    assert heard == [True]
    handle.remove()


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_no_weight_is_used_more_than_once(edited: bool, typed: bool, checkpoint: Callable[..., Path]) -> None:
    """Of those that are, gradients could neither be computed beside the backward pass nor written at home."""
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    batch |= {"token_type_ids": torch.ones_like(batch["input_ids"])}
    lowered, site = Lowered([model], dtype=DTYPE), site_of_layer(anatomy(model), 0)
    given = batch if typed else {name: value for name, value in batch.items() if name != "token_type_ids"}
    with rewriting(model, site, lambda x: x) if edited else nullcontext():
        found = lowered(**given).logits
    assert set(lowered.uses.values()) == {1}
    torch.testing.assert_close(found.float(), model(**given).logits, **NEAR)


def test_inputs_may_be_parts_of_wider_ones(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    batch |= {"token_type_ids": torch.zeros_like(batch["input_ids"])}
    wide = {name: torch.cat([value, 1 - value.clamp(max=1)], 1)[:, :16] for name, value in batch.items()}
    assert not wide["input_ids"].is_contiguous()
    lowered, layer = Lowered([model], dtype=DTYPE), Site(anatomy(model).layers[0])
    with rewriting(model, layer, lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]]):
        found = lowered(**wide).logits
    torch.testing.assert_close(found.float(), model(**batch).logits, **NEAR)


def test_what_is_dropped_is_known_when_the_forward_is_made(checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert")
    lowered = Lowered([model], dtype=DTYPE)
    _, wanted = passed(lowered, batch)
    logits = lowered(**batch).logits.float()
    model.train()
    (logits * torch.linspace(-1, 1, logits.numel(), device=DEVICE).view_as(logits)).sum().backward()
    for name, gradient in lowered.gradients().items():
        torch.testing.assert_close(gradient, wanted[name], **NEAR)


@pytest.mark.parametrize("edited", [False, True])
def test_what_the_kernels_cannot_differentiate_twice_is_refused(edited: bool, checkpoint: Callable[..., Path]) -> None:
    """Else a penalty on gradients would miss all that goes through them."""
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert", rows=2, width=8)
    lowered, site = Lowered([model], dtype=DTYPE), site_of_layer(anatomy(model), 0)
    with rewriting(model, site, lambda x: x) if edited else nullcontext():
        logits = lowered(**batch).logits
    words = lowered.copies[f"{anatomy(model).embeddings}.weight"]
    (slope,) = torch.autograd.grad(logits.square().sum(), words, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


@pytest.mark.parametrize("edited", [False, True])
def test_a_forward_may_be_differentiated_again(edited: bool, checkpoint: Callable[..., Path]) -> None:
    model, batch = network(checkpoint, "bert"), batch_for(checkpoint, "bert", rows=2, width=8)
    lowered, site = Lowered([model], dtype=DTYPE), site_of_layer(anatomy(model), 0)
    found = []
    for shares in ((1.0,), (0.5,), (1.0, 0.5)):
        with rewriting(model, site, lambda x: x) if edited else nullcontext():
            loss = lowered(**batch).logits.float().square().sum()
        for share in shares:
            loss.backward(torch.tensor(share, device=DEVICE), retain_graph=True)
        found.append(lowered.gradients())
        assert lowered.once == (len(shares) == 1)  # the second would be written over the first
    for name, both in found[2].items():
        torch.testing.assert_close(both, found[0][name] + found[1][name], **NEAR)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("runs", [1, 2])
def test_all_gradients_of_a_captured_step_are_written_at_home(
    runs: int, edited: bool, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, batch = [network(checkpoint, "bert", seed) for seed in range(runs)], batch_for(checkpoint, "bert")
    lowered, site = Lowered(models, dtype=DTYPE, branch=Branch()), site_of_layer(anatomy(models[0]), 0)
    with rewriting(models[0], site, lambda x: x) if edited else nullcontext():
        _, wanted = passed(lowered, batch)
        monkeypatch.setattr(lowering, "capturing", lambda: True)
        lowered.stretch = stretch_for(lowered.copies)
        _, found = passed(lowered, batch)
    assert set(found) == set(wanted)
    for name, gradient in found.items():
        assert gradient.data_ptr() == like(lowered.stretch, lowered.copies[name]).data_ptr(), name
        torch.testing.assert_close(gradient, wanted[name], **NEAR)


def test_modules_are_left_as_they_were(checkpoint: Callable[..., Path]) -> None:
    model = network(checkpoint, "bert")
    Lowered([model], dtype=DTYPE)(**batch_for(checkpoint, "bert"))
    assert not any("forward" in vars(module) for module in model.modules())


def test_networks_that_are_not_what_we_take_them_for_are_not_served(checkpoint: Callable[..., Path]) -> None:
    frozen, other = network(checkpoint, "bert"), network(checkpoint, "distilbert")
    next(frozen.get_submodule(anatomy(frozen).layers[0]).parameters()).requires_grad_(False)
    assert layers._shape_of(frozen) is None
    assert layers._shape_of(other) is None
