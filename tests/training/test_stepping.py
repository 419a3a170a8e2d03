"""One update: the gradient is the mean over the whole batch, however it is cut."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from calmix.mixing import Recipe, choose, fill_tokens
from calmix.models import encode, load_for_training
from calmix.recipes import clean
from calmix.training.batches import epoch_steps, epoch_steps_together, training_set
from calmix.training.optimising import adamw
from calmix.training.preparing import class_weights_of
from calmix.training.stepping import Stepper, _can_be_captured


def stepper_for(
    folder: Path, recipe: Recipe | None = None, *, rows: int = 23, weights: Any = None, clip: float = 0.0
) -> Stepper:
    """Return a stepper over `rows` sentences that leaves the gradient it last used in `seen`."""
    torch.manual_seed(0)
    data = tiny.examples(rows)
    model, tokenizer = load_for_training(str(folder), label_names=data.label_names)
    model.train()
    pack = training_set(data, encode(data, tokenizer, max_length=32), class_weights_of(data, weights))
    optimizer = adamw(model.parameters(), lr=0.0, weight_decay=0.0)
    AcceleratorState._reset_state()  # a run before may have left bf16 behind
    return Stepper(
        model,
        pack,
        recipe or choose("erm"),
        Accelerator(mixed_precision="no"),
        optimizer,
        fill=fill_tokens(tokenizer),
        seed=1,
        clip=clip,
    )


def gradient(stepper: Stepper, *, batch_size: int, accumulate: int = 1) -> tuple[list[torch.Tensor], Any]:
    """Return the gradient of the first step of an epoch, and the rows it saw."""
    parts = next(
        iter(
            epoch_steps(
                stepper.data,
                stepper.recipe,
                0,
                batch_size=batch_size,
                accumulate=accumulate,
                seed=1,
                rank=0,
                world=1,
            )
        )
    )
    kept: list[torch.Tensor] = []

    def keep(optimizer: Any, *_: Any) -> None:
        kept.extend(p.grad.clone() for group in optimizer.param_groups for p in group["params"])

    handle = stepper.optimizer.register_step_pre_hook(keep)
    stepper.step(parts, 0, 0.0)
    handle.remove()
    return kept, torch.cat([part.rows for part in parts])


@pytest.mark.parametrize("accumulate", [2, 3, 5, 100])
def test_the_gradient_does_not_depend_on_the_parts(calm: Path, accumulate: int) -> None:
    whole, rows = gradient(stepper_for(calm), batch_size=7)
    parts, same_rows = gradient(stepper_for(calm), batch_size=7, accumulate=accumulate)
    assert sorted(rows.tolist()) == sorted(same_rows.tolist())
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", [None, "balanced", {"animal": 3.0, "food": 0.5}])
def test_the_gradient_is_that_of_torchs_cross_entropy(calm: Path, weights: Any) -> None:
    stepper = stepper_for(calm, weights=weights)
    model = copy.deepcopy(stepper.model)
    found, rows = gradient(stepper, batch_size=9, accumulate=2)
    inputs = stepper.data.packed.batch(rows, width=32)
    labels = stepper.data.labels[rows]
    if weights is None:
        loss = nn.functional.cross_entropy(model(**inputs).logits, labels)
    else:
        # By the books: weights with mean 1 over the training rows, and the mean over the rows of the batch.
        counts = np.bincount(stepper.data.labels)
        raw = np.array([23 / c for c in counts]) if weights == "balanced" else np.array([3.0, 0.5, 1.0])
        each = torch.tensor(raw / (raw * counts / 23).sum(), dtype=torch.float32)
        loss = nn.functional.cross_entropy(model(**inputs).logits, labels, weight=each, reduction="sum") / len(rows)
    loss.backward()
    named = {name: p.grad for name, p in model.named_parameters()}
    ordered = [named[n] for n, p in stepper.model.named_parameters() if p.dim() >= 2]
    ordered += [named[n] for n, p in stepper.model.named_parameters() if p.dim() < 2]
    for a, b in zip(found, ordered, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_balanced_weights_are_torchs_weighted_mean_on_the_whole_training_set(calm: Path) -> None:
    stepper = stepper_for(calm, weights="balanced")
    model = copy.deepcopy(stepper.model)
    gradient(stepper, batch_size=23)
    rows = torch.arange(23)
    logits, labels = model(**stepper.data.packed.batch(rows, width=32)).logits, stepper.data.labels
    expected = nn.functional.cross_entropy(logits, labels, weight=stepper.data.class_weights)
    assert stepper.read(None)[1] / 23 == pytest.approx(float(expected.detach()), rel=1e-5)


def test_recomputed_activations_are_neither_captured_nor_those_of_copies(calm: Path) -> None:
    model, _ = load_for_training(str(calm), label_names=tiny.LABELS)
    gpu: Any = SimpleNamespace(num_processes=1, device=torch.device("cuda"))
    assert _can_be_captured(model, gpu)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert not _can_be_captured(model, gpu)


def test_copies_follow_what_is_loaded_before_the_first_step_and_every_update(calm: Path) -> None:
    plain = stepper_for(calm)
    other = copy.deepcopy(plain.model)
    stepper = Stepper(
        plain.model,
        plain.data,
        plain.recipe,
        plain.accelerator,
        plain.optimizer,
        fill=plain.fill,
        seed=1,
        clip=0.0,
        beside=[(other, adamw(other.parameters(), lr=0.0, weight_decay=0.0))],
    )
    with torch.no_grad():
        other.get_parameter("classifier.bias")[0] = 50.0
    layout = epoch_steps_together(plain.data, plain.recipe, 0, batch_size=6, seeds=[1, 1], signals=[{}, {}])
    stepper.step(next(iter(layout)), 0, 1e-3)
    _, (loss, worse), _ = stepper.read_all()
    assert worse > loss + 50
    assert stepper.lowered is not None
    copied = stepper.lowered.copies["classifier.weight"].detach()
    for model, mine in zip((plain.model, other), copied, strict=True):
        assert torch.equal(model.get_parameter("classifier.weight"), mine)
    assert not torch.equal(*copied)


def test_rows_and_loss_add_up_until_a_restart(calm: Path) -> None:
    stepper = stepper_for(calm, rows=24)
    gradient(stepper, batch_size=8)
    rows, loss = stepper.read(None)
    assert rows == 8
    assert stepper.read(None) == (rows, loss)
    gradient(stepper, batch_size=8)
    assert stepper.read(None) == (16, pytest.approx(2 * loss))
    stepper.restart()
    assert stepper.read(None) == (0, 0.0)
    stepper.restart(rows, loss)
    assert stepper.read(None) == (rows, loss)
    assert stepper.seen == 16


def test_a_bad_gradient_leaves_weights_and_optimiser_as_they_were(calm: Path) -> None:
    bad: list[bool] = []
    term = clean()
    stepper = stepper_for(calm, Recipe(lambda step: term(step) * (float("nan") if bad else 1.0)))
    parts = next(
        iter(epoch_steps(stepper.data, stepper.recipe, 0, batch_size=8, accumulate=1, seed=1, rank=0, world=1))
    )
    stepper.step(parts, 0, 1e-2)
    weights = copy.deepcopy(stepper.model.state_dict())
    moments = copy.deepcopy(stepper.optimizer.state_dict()["state"])
    bad.append(True)
    stepper.step(parts, 1, 1e-2)
    assert all(torch.equal(weights[k], v) for k, v in stepper.model.state_dict().items())
    after = stepper.optimizer.state_dict()["state"]
    assert all(torch.equal(moments[i][k], after[i][k]) for i in moments for k in moments[i])


def test_dropout_and_draws_are_decided_by_the_step_number(checkpoint: Any) -> None:
    recipe = choose("input-mixup")
    first, again = (gradient(stepper_for(checkpoint("bert"), recipe), batch_size=8)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
