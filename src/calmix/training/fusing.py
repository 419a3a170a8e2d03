"""AdamW's update of all weights by one kernel: moments, weights and their bf16 copies in a single pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmix.kernels import capturing, usable
from calmix.training.layout import lay_out, like, stretch_for

__all__ = ["Fused"]

# How many numbers a program of a kernel takes at a time, and how often; and how many weights.
_BLOCK, _TIMES, _WEIGHTS = 1024, 4, 128


class Fused:
    """Updates float32 weights from gradients in bf16, as `torch.optim.AdamW` would, and renews their bf16 copies.

    torch's own fused AdamW wants gradients in float32, and writes them back when it scales them: with the casts before
    and after it, 48 bytes are moved for each weight where 34 do. And a stretch of a weight whose gradients have all
    been 0 so far stays as it is, unless it decays, and is not even read: vectors of words that do not occur, a fifth of
    the weights of a small encoder on twenty thousand pairs of sentences.

    The moments are the optimisers' own, so that they are saved and resumed as ever.

    Args:
        optimizers: AdamW, one for each run.
        owners: of each run, its weights by name.
        copies: of the weights, in bf16, as `lay_out` makes them; if there are several runs, theirs along a first axis.
            `gradients` is a stretch of memory like theirs: gradients that lie there already are not copied.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        owners: Sequence[Mapping[str, Tensor]],
        copies: Mapping[str, Tensor],
    ) -> None:
        self.optimizers, self.owners = optimizers, owners
        self.copies = {name: copy for name, copy in copies.items() if copy.requires_grad}
        self.gradients = stretch_for(self.copies)
        self.homes = {name: like(self.gradients, copy) for name, copy in self.copies.items()}
        self.tables: _Tables | None = None
        self.included: dict[tuple[str, ...], Tensor] = {}

    @staticmethod
    def serves(optimizers: Sequence[torch.optim.Optimizer], copies: Mapping[str, Tensor]) -> bool:
        """Return whether this can update all that is learnt: by AdamW, with copies in bf16, on a GPU with Triton."""
        learnt = [copy for copy in copies.values() if copy.requires_grad]
        weights = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        return (
            all(isinstance(optimizer, torch.optim.AdamW) for optimizer in optimizers)
            and len(weights) == len(learnt) * len(optimizers)
            and all(p.is_cuda and p.dtype == torch.float32 and p.is_contiguous() for p in weights)
            and all(p.numel() <= 2**31 for p in weights)  # places in a weight are 32 bits wide
            and all(copy.dtype == torch.bfloat16 for copy in learnt)
            and all((copy if len(optimizers) == 1 else copy[0]).is_contiguous() for copy in learnt)
            and usable(agrees_with_torch, weights[0].device)
        )

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor], *, clip: float, number: Tensor, bad: Tensor) -> None:
        """Update from gradients clipped to norm `clip`.

        Of a run whose norm is not finite nothing is touched, without the host being asked; in `bad`, unless it has gone
        bad before, it gets the step's number instead of -1. The first update must not be part of a capture.
        """
        # Made with the first gradients, not before: a run that is resumed has its moments only then.
        tables = self.tables = self.tables or _tables(self.optimizers, self.owners, self.copies)
        kernels, included = _kernels(), self._included(tuple(gradients))
        away = [name for name, found in gradients.items() if found.data_ptr() != self.homes[name].data_ptr()]
        if away:
            torch._foreach_copy_([self.homes[name] for name in away], [gradients[name] for name in away])
        count, weights = len(tables.blocks), len(tables.weights)
        programs, sizes = (-(-count // _TIMES),), {"BLOCK": _BLOCK, "TIMES": _TIMES}
        lists = (self.gradients, tables.blocks, tables.weights)
        kernels.squares[programs](*lists, included, tables.squares, count, **sizes)
        total = tables.squares.view(len(self.optimizers), -1).sum(1)
        told = (tables.weights, tables.rates, included, total, tables.steps, tables.decided, number, bad)
        kernels.decide[(-(-weights // _WEIGHTS),)](*told, clip, weights, BLOCK=_WEIGHTS)
        kernels.update[programs](*lists, tables.rates, tables.decided, tables.moved, tables.steps, count, **sizes)

    def _included(self, names: tuple[str, ...]) -> Tensor:
        """Return 1.0 for each weight of each run that has a gradient."""
        if names in self.included:
            return self.included[names]
        device = next(iter(self.copies.values())).device
        found = torch.zeros(len(self.owners), len(self.copies), device=device)
        for place, name in enumerate(self.copies):
            found[:, place].fill_(float(name in names))
        # Inside a capture these are steps of the graph, and their memory is its own.
        if not capturing():
            self.included[names] = found
        return found


@dataclass(frozen=True, eq=False)
class _Tables:
    """Where everything lies that an update reads and writes. Weights are counted on from run to run."""

    weights: Tensor
    """For each weight the addresses of it, both moments, its copy, its step and its learning rate; its size; where its
    gradient begins; its run; and whether all of these are multiples of 16 and may be read many numbers at a time."""
    rates: Tensor
    """For each weight its decay, both betas and epsilon."""
    blocks: Tensor
    """For each block which weight it is of, and where in it it begins: all of the first run, then of the second."""
    squares: Tensor
    """For each block the sum of its squared gradients."""
    moved: Tensor
    """For each block whether it ever had a gradient."""
    steps: Tensor
    """For each weight how often it was updated."""
    decided: Tensor
    """For each weight what its gradient is multiplied by (0: there is none, or a bad one), and AdamW's corrections."""


def _tables(
    optimizers: Sequence[torch.optim.Optimizer], owners: Sequence[Mapping[str, Tensor]], copies: Mapping[str, Tensor]
) -> _Tables:
    device = next(iter(copies.values())).device
    weights: list[list[int]] = []
    rates, blocks, moved, steps = [], [], [], []
    for run, (optimizer, owned) in enumerate(zip(optimizers, owners, strict=True)):
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for name, copy in copies.items():
            weight, own = owned[name], copy if len(owners) == 1 else copy[run]
            group, state = groups[id(weight)], _state_of(optimizer, weight)
            held = (weight, state["exp_avg"], state["exp_avg_sq"], own, state["step"], group["lr"])
            starts = np.arange(0, weight.numel(), _BLOCK)
            blocks.append(np.stack([np.full_like(starts, len(weights)), starts], axis=1))
            second = torch.nn.functional.pad(state["exp_avg_sq"].flatten(), (0, -weight.numel() % _BLOCK))
            moved.append(second.view(-1, _BLOCK).any(1))
            steps.append(state["step"])
            numbers = [*(t.data_ptr() for t in held[:4]), weight.numel(), home := int(own.storage_offset())]
            even = all(number % 16 == 0 for number in numbers)
            weights.append([*(t.data_ptr() for t in held), weight.numel(), home, run, even])
            rates.append([group["weight_decay"], *group["betas"], group["eps"]])
    return _Tables(
        weights=torch.tensor(weights, device=device),
        rates=torch.tensor(rates, device=device, dtype=torch.float64),
        blocks=torch.from_numpy(np.concatenate(blocks).astype(np.int32)).to(device),
        squares=torch.zeros(sum(map(len, blocks)), device=device),
        moved=torch.cat(moved).to(torch.int8),
        steps=torch.stack(steps).to(device),
        decided=torch.zeros(len(weights), 3, device=device),
    )


def _state_of(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Any]:
    """Return what AdamW knows of a weight; if nothing yet, what it begins with."""
    state: dict[str, Any] = optimizer.state[weight]
    if not state:
        state["step"] = torch.zeros((), device=weight.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    return state


def _kernels() -> Any:
    """Return the module of kernels, which only there is use for, and Triton, where there is a GPU."""
    from calmix.kernels import updating

    return updating


def agrees_with_torch(device: torch.device) -> bool:
    """Return whether two updates of two small weights, one of them even, come to what AdamW comes to."""
    generator = torch.Generator(device).manual_seed(0)  # nobody else's draws are to be others for it
    shapes = {"even": (40, 64), "odd": (3,)}
    begun = {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
    mine, theirs = ({n: torch.nn.Parameter(w.clone()) for n, w in begun.items()} for _ in range(2))
    rate = torch.tensor(1e-2, device=device)
    ours, peer = (
        torch.optim.AdamW(owned.values(), lr=rate, weight_decay=0.1, capturable=device.type == "cuda")
        for owned in (mine, theirs)
    )
    copies = {name: copy.requires_grad_() for name, copy in lay_out(begun, torch.bfloat16).items()}
    fused = Fused([ours], [mine], copies)
    for _ in range(2):
        drawn = {n: torch.randn(w.shape, generator=generator, device=device).bfloat16() for n, w in begun.items()}
        fused.update(drawn, clip=1.0, number=torch.zeros((), device=device), bad=torch.full((1,), -1.0, device=device))
        for name, weight in theirs.items():
            weight.grad = drawn[name].float()
        torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        peer.step()
    pairs = [(mine[name].detach(), theirs[name].detach(), copies[name].detach()) for name in shapes]
    return all(
        torch.allclose(weight, wanted, rtol=1e-4, atol=1e-5)
        and torch.allclose(copy.float(), wanted, rtol=1e-2, atol=1e-3)
        for weight, wanted, copy in pairs
    )
