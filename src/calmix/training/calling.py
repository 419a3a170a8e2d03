"""How a step calls linear layers, normalisations and embeddings: for several models at once, or beside the backward."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from calmix.training.branching import Branch

__all__ = ["Calls"]


class Calls(TorchFunctionMode):
    """Takes over the calls a forward makes with its weights; everything else has no weights and stays as it is.

    With weights of several models stacked along a new first axis, `runs` of them, the rows of a batch are those
    of the first model, then of the second, and so on: one matrix product, of all, does what each would do.

    With a `branch`, the gradients of linear layers' weights are computed beside the backward pass: nothing waits
    for them but the update, and they are half its matrix products and all its sums over tokens. Only where each
    weight is used once: otherwise a second gradient might be added before the first is there.
    """

    def __init__(self, runs: int, sequences: int, branch: Branch | None, uses: Counter[int]) -> None:
        super().__init__()
        self.runs, self.sequences, self.branch, self.uses = runs, sequences, branch, uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function would return for each model's own rows."""
        kwargs = kwargs or {}
        if func is functional.linear:
            return self._linear(*args, **kwargs)
        if func is functional.layer_norm:
            return self._layer_norm(*args, **kwargs)
        if func is functional.embedding:
            return self._embedding(*args, **kwargs)
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        self.uses[id(weight)] += 1
        if self.branch is not None:
            made: Tensor = _Linear.apply(input, weight, bias, self.branch)  # type: ignore[no-untyped-call]
            return made
        return _linear(input, weight, bias)

    def _layer_norm(
        self, input: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        if weight is None or (self.branch is None and weight.dim() == 1) or len(shape) > 1:
            return functional.layer_norm(input, shape, weight, bias, eps)
        self.uses[id(weight)] += 1
        if self.branch is not None:
            made: Tensor = _LayerNorm.apply(input, weight, bias, eps, self.branch)  # type: ignore[no-untyped-call]
            return made
        return _scaled(functional.layer_norm(input, shape, None, None, eps), weight, bias)

    def _embedding(
        self, input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kw: Any
    ) -> Tensor:
        if weight.dim() == 2:
            return functional.embedding(input, weight, padding_idx, *args, **kw)
        # Positions are often looked up once for all rows of a batch.
        ids = input.expand(self.sequences, *input.shape[1:]) if len(input) == 1 else input
        offsets = torch.arange(self.runs, device=input.device) * weight.shape[1]
        moved = (ids.reshape(self.runs, -1) + offsets[:, None]).view(ids.shape)
        found = functional.embedding(moved, weight.flatten(0, 1))
        if padding_idx is None:
            return found
        # The vector of padding is not learnt.
        return torch.where((ids == padding_idx)[..., None], found.detach(), found)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    grouped, turned = x.reshape(len(weight), -1, x.shape[-1]), weight.transpose(1, 2)
    y = grouped @ turned if bias is None else torch.baddbmm(bias[:, None], grouped, turned)
    return y.view(*x.shape[:-1], weight.shape[1])


def _scaled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    grouped = x.reshape(*weight.shape[:-1], -1, x.shape[-1])
    scale = weight.unsqueeze(-2)
    y = grouped * scale if bias is None else torch.addcmul(bias.unsqueeze(-2), grouped, scale)
    return y.view(x.shape)


def _summed(x: Tensor) -> Tensor:
    """Return the sums over tokens, as a matrix product: several times faster than a reduction of so few rows."""
    return (x.new_ones(1, x.shape[-2]) @ x).squeeze(-2)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, branch: Branch) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased, ctx.branch = bias is not None, branch
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        lead, (outputs, inputs) = weight.shape[:-2], weight.shape[-2:]
        gradient = upstream[0].reshape(*lead, -1, outputs)
        with ctx.branch.forked(gradient, x):
            for_weight = gradient.transpose(-1, -2) @ x.reshape(*lead, -1, inputs)
            for_bias = _summed(gradient) if ctx.biased else None
        for_x = (gradient @ weight).view(x.shape) if ctx.needs_input_grad[0] else None
        return for_x, for_weight, for_bias, None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, branch: Branch) -> Tensor:
        plain, mean, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.save_for_backward(x, mean, scale, plain, weight)
        ctx.biased, ctx.branch = bias is not None, branch
        return _scaled(plain, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        x, mean, scale, plain, weight = ctx.saved_tensors
        gradient = upstream[0].reshape(*weight.shape[:-1], -1, x.shape[-1])
        with ctx.branch.forked(gradient, plain):
            for_weight = _summed(gradient * plain.view(gradient.shape))
            for_bias = _summed(gradient) if ctx.biased else None
        inward = (gradient * weight.unsqueeze(-2)).view(x.shape)
        for_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            inward, x, x.shape[-1:], mean, scale, None, None, [True, False, False]
        )
        return for_x, for_weight, for_bias, None, None
