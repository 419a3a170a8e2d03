"""One kernel updates all weights as AdamW does. Needs Triton, and a GPU or its interpreter: skipped without."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_device import DEVICE, ON_GPU, Nothing
from torch import Tensor

from calmix.kernels import tried
from calmix.training import fusing
from calmix.training.fusing import Fused
from calmix.training.layout import lay_out
from calmix.training.optimising import set_learning_rate
from calmix.training.state import load_optimizer, optimizer_tensors

SHAPES = {"table": (50, 40), "weight": (33, 70), "bias": (3,)}


class Both:
    """The same weights of some runs, updated by us and by torch."""

    def __init__(self, runs: int, *, decay: float) -> None:
        torch.manual_seed(0)
        stacked = {name: torch.randn(runs, *shape, device=DEVICE) for name, shape in SHAPES.items()}
        self.runs = runs
        self.ours = [{n: torch.nn.Parameter(w[r].clone()) for n, w in stacked.items()} for r in range(runs)]
        self.theirs = [{n: torch.nn.Parameter(w[r].clone()) for n, w in stacked.items()} for r in range(runs)]
        self.mine = [self.optimizer(owned, decay) for owned in self.ours]
        self.peers = [self.optimizer(owned, decay) for owned in self.theirs]
        begun = {name: weight[0] if runs == 1 else weight for name, weight in stacked.items()}
        self.copies = {name: copy.requires_grad_() for name, copy in lay_out(begun, torch.bfloat16).items()}
        self.fused = Fused(self.mine, self.ours, self.copies)

    @staticmethod
    def optimizer(owned: dict[str, Any], decay: float) -> torch.optim.AdamW:
        groups = [
            {"params": [w for w in owned.values() if w.dim() > 1], "weight_decay": decay},
            {"params": [w for w in owned.values() if w.dim() == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=torch.tensor(1e-2, device=DEVICE), capturable=ON_GPU)

    def step(self, gradients: dict[str, Tensor], clip: float = 1.0) -> list[float]:
        for run in range(self.runs):
            own = {n: (g if self.runs == 1 else g[run]).float() for n, g in gradients.items()}
            norm = math.sqrt(sum(float(g.square().sum()) for g in own.values()))
            if math.isfinite(norm):
                for name, weight in self.theirs[run].items():
                    weight.grad = own[name] / max(1.0, norm / clip) if name in own else None
                self.peers[run].step()
        bad = torch.full((self.runs,), -1.0, device=DEVICE)
        self.fused.update(gradients, clip=clip, number=torch.ones((), device=DEVICE), bad=bad)
        return [float(step > 0) for step in bad.tolist()]

    def gradients(self, step: int, *, names: tuple[str, ...] = tuple(SHAPES)) -> dict[str, Tensor]:
        """Return gradients that are clipped in every second step; the second half of the table never has any."""
        generator = torch.Generator().manual_seed(step)
        size = 3.0 if step % 2 else 0.01
        made = {n: size * torch.randn(self.copies[n].shape, generator=generator) for n in names}
        if "table" in made:
            made["table"].view(self.runs, 50, 40)[:, 26:] = 0
        return {n: g.bfloat16().to(DEVICE) for n, g in made.items()}

    def check(self) -> None:
        for run in range(self.runs):
            for name, weight in self.ours[run].items():
                peer = self.theirs[run][name]
                torch.testing.assert_close(weight, peer, rtol=1e-5, atol=1e-6)
                copy = self.copies[name] if self.runs == 1 else self.copies[name][run]
                torch.testing.assert_close(copy.float(), weight, rtol=2**-7, atol=1e-6)
                mine, theirs = self.mine[run].state[weight], self.peers[run].state[peer]
                for known in theirs:
                    torch.testing.assert_close(mine[known].cpu(), theirs[known].cpu(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("runs", [1, 2])
def test_weights_moments_and_steps_are_those_of_torch(runs: int, decay: float) -> None:
    both = Both(runs, decay=decay)
    for step in range(5):
        assert both.step(both.gradients(step)) == [0.0] * runs
        both.check()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_run_whose_gradient_is_not_finite_keeps_everything_and_the_other_goes_on(wrong: float) -> None:
    both = Both(2, decay=0.0)
    both.step(both.gradients(0))
    gradients = both.gradients(1)
    gradients["weight"][0, 5, 5] = wrong
    assert both.step(gradients) == [1.0, 0.0]
    both.check()
    assert both.step(both.gradients(2)) == [0.0, 0.0]
    both.check()


def test_a_weight_without_a_gradient_is_left_alone_and_counts_no_step() -> None:
    both = Both(1, decay=0.1)
    for step, names in enumerate([("weight", "bias"), ("table", "weight", "bias"), ("table", "bias")]):
        both.step(both.gradients(step, names=names))
        both.check()


def test_what_never_had_a_gradient_is_not_touched_unless_it_decays() -> None:
    both = Both(1, decay=0.0)
    before = both.ours[0]["table"].detach().clone()
    for step in range(3):
        both.step(both.gradients(step))
    assert torch.equal(both.ours[0]["table"][26:], before[26:])
    moved = both.fused.tables.moved.tolist()  # type: ignore[union-attr]
    # The table has two blocks of 1,024 numbers, of which the second begins before row 26; the weight three.
    assert moved == [1, 1, 1, 1, 1, 1]
    gradients = both.gradients(0, names=("table",))
    gradients["table"].zero_()
    fresh = Both(1, decay=0.0)
    fresh.step(gradients)
    assert fresh.fused.tables.moved.sum() == 0  # type: ignore[union-attr]


def test_a_resumed_optimiser_goes_on_where_it_was() -> None:
    both = Both(1, decay=0.0)
    for step in range(3):
        both.step(both.gradients(step))
    load_optimizer(both.mine[0], optimizer_tensors(both.mine[0]))  # new moments, steps and rates
    both.fused = Fused(both.mine, both.ours, both.copies)
    for optimizer in (*both.mine, *both.peers):
        set_learning_rate([optimizer], 3e-3)
    quiet = both.gradients(3)
    quiet["table"].zero_()  # its moments still move it
    both.step(quiet)
    both.check()


def test_nothing_else_than_adamw_on_a_gpu_is_served() -> None:
    both = Both(1, decay=0.0)
    assert Fused.serves(both.mine, both.copies) == ON_GPU
    plain = [torch.optim.SGD(both.ours[0].values(), lr=0.1)]
    assert not Fused.serves(plain, both.copies)
    assert not Fused.serves(both.mine, {"bias": both.copies["bias"]})


@pytest.mark.parametrize(("wrong", "served"), [({}, True), ({"is_cuda": False}, False), ({"size": 2**31 + 1}, False)])
def test_triton_is_asked_for_where_it_serves_alone(
    wrong: dict[str, Any], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("calmix.training.fusing.usable", lambda _agrees, _device: asked.append(True) or True)
    is_like = {
        "is_cuda": True,
        "device": "cuda:0",
        "dtype": torch.float32,
        "is_contiguous": lambda: True,
        "size": 2**31,
        **wrong,
    }
    optimizer = torch.optim.AdamW([torch.zeros(1)])
    optimizer.param_groups[0]["params"] = [SimpleNamespace(numel=lambda: is_like["size"], **is_like)]
    copies = {"weight": torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)}
    assert Fused.serves([optimizer], copies) is served
    assert bool(asked) is served


def works() -> bool:
    return tried(fusing.agrees_with_torch, DEVICE)  # not what was found before


def test_kernels_are_tried_before_they_are_used_and_draw_nothing_of_anybodys() -> None:
    before = torch.get_rng_state()
    assert works()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kernel", ["squares", "decide", "update"])
def test_kernels_that_do_nothing_are_found_out(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.kernels import updating

    monkeypatch.setattr(updating, kernel, Nothing())
    assert not works()


def test_where_nothing_can_be_compiled_nobody_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from calmix.kernels import updating

    monkeypatch.setattr(updating, "update", None)
    with caplog.at_level("INFO"):
        assert not works()
    assert "Triton's kernels are not used" in caplog.text
