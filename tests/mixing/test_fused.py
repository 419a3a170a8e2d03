"""Losses, gradients and partners by kernels are those of torch. Needs Triton, and a GPU or its interpreter."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_device import DEVICE, ON_GPU, Nothing
from torch import Tensor

from calmix.dynamics import batch_partners, cosine, head_cosine, residual, saliency_map
from calmix.kernels import tried
from calmix.mixing import fused
from calmix.mixing.guided import aum_saliency, informed_mixup, tdmixup
from calmix.mixing.losses import Mixes, by_torch
from calmix.mixing.recipes import cls_mixup, erm, label_smoothing

# In the interpreter each row is a program that takes milliseconds.
few = settings(deadline=None, max_examples=200 if ON_GPU else 25, derandomize=True)


class Batch:
    """Logits and label distributions of some runs, and partners inside them."""

    def __init__(self, *, size: int, classes: int, runs: int = 1, seed: int = 0) -> None:
        self.generator, self.runs, self.classes = torch.Generator().manual_seed(seed), runs, classes
        self.rows = size * runs
        self.logits = (3 * self.draw(self.rows, classes)).requires_grad_()
        self.targets = torch.softmax(4 * self.draw(self.rows, classes), -1)
        self.targets[0] = 0  # no label
        self.class_weights = self.draw(classes).abs()
        self.upstream = self.draw(self.rows)
        first = torch.arange(self.rows) // size * size
        drawn = torch.randint(size, (2, self.rows), generator=self.generator)
        self.partner = (first + drawn).to(DEVICE)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(DEVICE)

    def mixes(self, count: int, *, smoothing: float = 0.0, weighted: bool = True) -> Mixes | None:
        own = torch.sigmoid(2 * self.draw(2, self.rows))
        own[:, 0], own[:, -1] = 1, 0
        if count == 1:
            weight = self.draw(self.rows).abs()
            weight[0] = 0
            return Mixes(self.partner[1], own[1], weight if weighted else None, smoothing)
        weight = torch.tensor([0.3, 0.6], device=DEVICE)
        return Mixes(self.partner, own, weight if weighted else None, smoothing) if count else None

    def both(self, mixes: Mixes | None, clean: float, smoothing: float, weights: bool) -> list[list[Tensor]]:
        """Return the losses and their gradient, by kernels and by torch."""
        told = (self.logits, self.targets, mixes, clean, smoothing, self.class_weights if weights else None)
        outcomes = (fused.losses(*told, self.runs), by_torch(*told))
        return [[o.detach(), torch.autograd.grad(o, self.logits, self.upstream)[0]] for o in outcomes]


def check(found: list[list[Tensor]]) -> None:
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6, equal_nan=True)


@few
@given(
    size=st.integers(1, 9),
    classes=st.sampled_from([1, 2, 3, 8, 9, 33]),
    runs=st.integers(1, 3),
    count=st.integers(0, 2),
    clean=st.sampled_from([0.0, 0.8, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    mixed_smoothing=st.sampled_from([0.0, 0.3]),
    weighted=st.booleans(),
    class_weights=st.booleans(),
    seed=st.integers(0, 100),
)
def test_losses_and_gradients_are_those_of_torch(
    size: int,
    classes: int,
    runs: int,
    count: int,
    clean: float,
    smoothing: float,
    mixed_smoothing: float,
    weighted: bool,
    class_weights: bool,
    seed: int,
) -> None:
    batch = Batch(size=size, classes=classes, runs=runs, seed=seed)
    mixes = batch.mixes(count, smoothing=mixed_smoothing, weighted=weighted)
    check(batch.both(mixes, clean, smoothing, class_weights))


def test_a_batch_of_more_rows_than_are_looked_at_at_a_time() -> None:
    batch = Batch(size=fused._ROWS + 6, classes=3)
    check(batch.both(batch.mixes(2), 0.8, 0.0, False))


def test_everybody_may_have_the_same_partner_or_be_his_own() -> None:
    batch = Batch(size=6, classes=3)
    batch.partner = torch.stack([torch.full((6,), 4), torch.arange(6)]).to(DEVICE)
    check(batch.both(batch.mixes(2), 0.8, 0.0, True))


def test_a_mix_may_count_nothing() -> None:
    batch = Batch(size=6, classes=3)
    own = torch.sigmoid(batch.draw(2, 6))
    ours, theirs = batch.both(Mixes(batch.partner, own, torch.tensor([0.0, 0.0], device=DEVICE)), 0.8, 0.0, False)
    check([ours, theirs])
    check([ours, batch.both(None, 0.8, 0.0, False)[1]])


def test_one_number_for_all_rows_is_read_where_it_is() -> None:
    batch = Batch(size=6, classes=3)
    lam = torch.tensor([0.3, 0.6], device=DEVICE)[:, None].expand(2, 6)
    batch.upstream = torch.full((1,), 0.25, device=DEVICE).expand(6)
    check(batch.both(Mixes(batch.partner, lam, torch.ones(2, device=DEVICE)), 1.0, 0.0, False))


def test_the_same_bits_come_out_every_time() -> None:
    batch = Batch(size=9, classes=3, runs=2)
    mixes = batch.mixes(2)
    first, second = (batch.both(mixes, 0.8, 0.1, True)[0] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_row_that_is_not_finite_spoils_its_own_loss_and_those_it_is_mixed_into(wrong: float, count: int) -> None:
    batch = Batch(size=5, classes=3, runs=2)
    with torch.no_grad():
        batch.logits[1, 2] = wrong
    mixes = batch.mixes(count)
    ours, theirs = batch.both(mixes, 0.8, 0.0, False)
    spoilt = torch.arange(10, device=DEVICE) == 1
    if mixes is not None:
        spoilt |= (mixes.partner.view(-1, 10) == 1).any(0)
    assert torch.equal(~ours[0].isfinite(), spoilt)
    assert ours[1][5:].isfinite().all()
    if count < 2:  # the matrix that torch mixes two with hands what is not finite on to everybody
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.isfinite(), other.isfinite())


def test_a_hopeless_row_has_a_large_finite_loss() -> None:
    batch = Batch(size=2, classes=3)
    with torch.no_grad():
        batch.logits.copy_(torch.tensor([[1e4, 0.0, -1e4], [0.0, 1e4, 0.0]]))
    batch.targets = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], device=DEVICE)
    check(batch.both(None, 1.0, 0.0, False))


def by_hand(logits: Tensor, targets: Tensor, sides: Tensor, runs: int, hidden: Tensor | None = None) -> Tensor:
    alike = cosine(saliency_map(logits, targets)) if hidden is None else head_cosine(residual(logits, targets), hidden)
    return torch.stack(batch_partners(alike, sides, runs))


@few
@given(
    size=st.integers(1, 12),
    classes=st.sampled_from([3, 5, 9, 40]),
    runs=st.integers(1, 3),
    soft=st.booleans(),
    seed=st.integers(0, 100),
)
def test_partners_are_those_of_torch(size: int, classes: int, runs: int, soft: bool, seed: int) -> None:
    batch = Batch(size=size, classes=classes, runs=runs, seed=seed)
    targets = batch.targets if soft else torch.eye(classes, device=DEVICE)[batch.targets.argmax(1)]
    sides = torch.randint(-1, 2, (batch.rows,), generator=batch.generator).to(DEVICE)
    found = fused.partners(batch.logits, targets, sides, runs)
    assert torch.equal(found, by_hand(batch.logits, targets, sides, runs))


@few
@given(
    size=st.integers(1, 12),
    classes=st.sampled_from([2, 3]),
    runs=st.integers(1, 3),
    features=st.sampled_from([4, 100]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 100),
)
def test_partners_by_the_heads_gradient_are_those_of_torch(
    size: int, classes: int, runs: int, features: int, dtype: torch.dtype, seed: int
) -> None:
    batch = Batch(size=size, classes=classes, runs=runs, seed=seed)
    hidden = batch.draw(batch.rows, features).to(dtype)
    hidden[0] = 0
    sides = torch.randint(-1, 2, (batch.rows,), generator=batch.generator).to(DEVICE)
    found = fused.partners(batch.logits, batch.targets, sides, runs, hidden)
    assert torch.equal(found, by_hand(batch.logits, batch.targets, sides, runs, hidden))


def test_partners_are_looked_for_among_all_rows_of_a_large_batch() -> None:
    batch = Batch(size=fused._ROWS + 9, classes=3)
    sides = torch.arange(batch.rows, device=DEVICE) % 2
    assert torch.equal(
        fused.partners(batch.logits, batch.targets, sides), by_hand(batch.logits, batch.targets, sides, 1)
    )


def test_of_equally_similar_rows_the_first_is_taken() -> None:
    batch = Batch(size=6, classes=3)
    logits, targets = batch.logits.detach()[[0, 1, 1, 2, 1, 2]], batch.targets[[1, 1, 1, 2, 1, 2]]
    found = fused.partners(logits, targets, torch.tensor([0, 0, 1, 1, 1, 1], device=DEVICE))
    assert found[0, 1] == 2
    assert set(found[:, :2].flatten().tolist()) <= {2, 3}
    assert set(found[:, 2:].flatten().tolist()) <= {0, 1}


@pytest.mark.parametrize("sides", [[0, 0, 0, 0], [1, 1, 1, 1], [-1, -1, -1, -1], [-1, 0, -1, 0], [0, 0, 1, -1]])
def test_whoever_has_nobody_on_the_other_side_is_his_own_partner(sides: list[int]) -> None:
    batch = Batch(size=4, classes=3)
    told = torch.tensor(sides, device=DEVICE)
    found = fused.partners(batch.logits, batch.targets, told)
    assert torch.equal(found, by_hand(batch.logits, batch.targets, told, 1))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_partners_of_rows_that_are_not_finite_are_rows_as_well(wrong: float) -> None:
    batch = Batch(size=6, classes=3)
    logits, sides = batch.logits.detach().clone(), torch.tensor([0, 1, 0, 1, 1, -1], device=DEVICE)
    logits[3, 1] = wrong
    found = fused.partners(logits, batch.targets, sides)
    assert torch.equal(found, by_hand(logits, batch.targets, sides, 1))


def test_a_row_that_is_certain_and_right_is_like_nobody() -> None:
    logits = torch.tensor([[800.0, 0, 0], [0.3, 0.1, 0.0], [0.0, 0.2, 0.1]], device=DEVICE)
    targets, sides = torch.eye(3, device=DEVICE), torch.tensor([0, 1, 1], device=DEVICE)
    assert torch.equal(fused.partners(logits, targets, sides), by_hand(logits, targets, sides, 1))


@pytest.mark.parametrize(
    "recipe",
    [
        erm(),
        label_smoothing(),
        cls_mixup(smoothing=0.1),
        cls_mixup(per_sample=True),
        tdmixup(),
        informed_mixup(smoothing=0.1),
        aum_saliency(),
        aum_saliency(similarity="head"),
        aum_saliency(similar=0),
        aum_saliency(saliency=False, smoothing=0.1),
        aum_saliency(as_released=True, dissimilar=0),
    ],
)
def test_recipes_give_the_losses_and_gradients_of_torch(
    recipe: Any, make_step: Any, gradients_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for serves in (False, True):
        monkeypatch.setattr(fused, "_serves", lambda *_, serves=serves: serves)
        step = make_step(rows=8)
        step.model.to(DEVICE)
        step.inputs = {name: value.to(DEVICE) for name, value in step.inputs.items()}
        step.targets, step.rows = step.targets.to(DEVICE), step.rows.to(DEVICE)
        step.generator = torch.Generator(DEVICE).manual_seed(0)
        step.signals = {"side": torch.tensor([0, 1, 0, 1, -1, 0, 1, 0], device=DEVICE)}
        step.class_weights = torch.tensor([0.5, 1.0, 2.0], device=DEVICE)
        losses = recipe.loss(step)
        found.append({"losses": losses.detach(), **gradients_of(step, losses.mean())})
    assert set(found[0]) == set(found[1])
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "agrees", [fused._losses_agree, fused._partners_agree, *map(fused._head_partners_of, fused._READ)]
)
@pytest.mark.parametrize("columns", fused._COLUMNS)
def test_kernels_are_tried_before_they_are_used_and_draw_nothing_of_anybodys(agrees: Any, columns: int) -> None:
    before = torch.get_rng_state()
    with torch.no_grad():
        assert agrees(columns, DEVICE)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kernel", ["losses", "gradients", "partners"])
def test_kernels_that_do_nothing_are_found_out(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import losses, partners

    home, agrees = (partners, fused._partners_agree) if kernel == "partners" else (losses, fused._losses_agree)
    monkeypatch.setattr(home, kernel, Nothing())
    monkeypatch.setattr(torch, "empty", torch.zeros)  # not what happens to be there
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    assert not agrees(8, DEVICE)


def test_where_nothing_can_be_compiled_nobody_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import losses

    monkeypatch.setattr(losses, "losses", None)
    assert not tried(partial(fused._losses_agree, 8), DEVICE)
