"""How a step calls linear layers, normalisations and embeddings: for several models at once, or beside the backward."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from calmix.training.branching import Branch

__all__ = ["Calls", "keep_ones", "rows_of"]

Home = Callable[[Tensor], Tensor]
"""Weight → where its gradient is to be written."""

# Rows of a table of embeddings whose gradient is cheaper as a product with who looked up what: positions and kinds of
# text, where many tokens look up the same few rows and would be added one after the other.
_FEW = 1024


class Calls(TorchFunctionMode):
    """Takes over the calls a forward makes with its weights; everything else has no weights and stays as it is.

    With weights of several models stacked along a new first axis, the rows of a batch are those of the first model,
    then of the second, and so on: one matrix product, of all, does what each would do.

    With a `branch`, the gradients of linear layers' weights are computed beside the backward pass: nothing waits
    for them but the update, and they are half its matrix products and all its sums over tokens. Only where each
    weight is used once: otherwise a second gradient might be added before the first is there. Nor where a weight is
    made of others, whose gradients would be made of its own.
    """

    def __init__(
        self,
        sequences: int,
        branch: Branch | None,
        uses: Counter[int],
        home: Home = torch.empty_like,
    ) -> None:
        super().__init__()
        self.sequences, self.branch, self.uses, self.home = sequences, branch, uses, home

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

    def _used(self, weight: Tensor, bias: Tensor | None = None) -> Branch | None:
        """Count a use, whatever becomes of it; return where the gradient may be computed, if beside."""
        self.uses[id(weight)] += 1
        return self.branch if weight.is_leaf and (bias is None or bias.is_leaf) else None

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if (branch := self._used(weight, bias)) is not None:
            made: Tensor = _Linear.apply(input, weight, bias, branch, self.home)  # type: ignore[no-untyped-call]
            return made
        return _linear(input, weight, bias)

    def _layer_norm(
        self, input: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        branch = None if weight is None else self._used(weight, bias)
        if weight is None or (branch is None and weight.dim() == 1) or len(shape) > 1:
            return functional.layer_norm(input, shape, weight, bias, eps)
        if branch is not None:
            made: Tensor = _LayerNorm.apply(input, weight, bias, eps, branch)  # type: ignore[no-untyped-call]
            return made
        return _scaled(functional.layer_norm(input, shape, None, None, eps), weight, bias)

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        plain = max_norm is None and not scale_grad_by_freq and not sparse
        branch = self._used(weight)
        few = plain and branch is not None and weight.shape[-2] <= _FEW
        if weight.dim() == 2 and not few:
            return functional.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        # Positions are often looked up once for all rows of a batch.
        several = weight.dim() == 3 and len(input) == 1
        ids = input.expand(self.sequences, *input.shape[1:]) if several else input
        if few:
            made: Tensor = _Table.apply(ids, weight, padding_idx, branch)  # type: ignore[no-untyped-call]
            return made
        found = rows_of(weight, ids)
        if padding_idx is None:
            return found
        # The vector of padding is not learnt.
        return torch.where((ids == padding_idx)[..., None], found.detach(), found)


def rows_of(weight: Tensor, ids: Tensor) -> Tensor:
    """Return the rows of a table, each model's of its own."""
    # Not `functional.embedding`, which `Calls` would count as another use of a table that somebody else looks up.
    if weight.dim() == 2:
        return torch.embedding(weight, ids)
    offsets = torch.arange(len(weight), device=ids.device) * weight.shape[1]
    moved = (ids.reshape(len(weight), -1) + offsets[:, None]).view(ids.shape)
    return torch.embedding(weight.flatten(0, 1), moved)


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
    return (_ones(x) @ x).squeeze(-2)


# Kept, since a captured step would write them each time; never replaced, since captured steps read them.
_ONES: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def keep_ones(device: torch.device, dtype: torch.dtype) -> None:
    """Have ones at hand for as many tokens as a step may be expected to have; must not be part of a capture."""
    if (device, dtype) not in _ONES:
        _ONES[device, dtype] = torch.ones(1, 2**15, device=device, dtype=dtype)


def _ones(x: Tensor) -> Tensor:
    tokens, kept = x.shape[-2], _ONES.get((x.device, x.dtype))
    return x.new_ones(1, tokens) if kept is None or kept.shape[1] < tokens else kept[:, :tokens]


_layer_norm_backward = torch.ops.aten.native_layer_norm_backward


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, branch: Branch, home: Home) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.branch, ctx.home = branch, home
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        x, weight, bias = ctx.saved_tensors
        lead, (outputs, inputs) = weight.shape[:-2], weight.shape[-2:]
        gradient = upstream[0].reshape(*lead, -1, outputs)
        # Who wants the gradient of a gradient gets a new one: torch cannot differentiate what is written to a place.
        home: Any = (lambda _: None) if torch.is_grad_enabled() else ctx.home
        with ctx.branch.forked(gradient, x):
            product = torch.bmm if lead else torch.mm
            for_weight = product(gradient.transpose(-1, -2), x.reshape(*lead, -1, inputs), out=home(weight))
            for_bias = None
            if bias is not None:
                out = home(bias)
                out = None if out is None else out.unsqueeze(-2)
                for_bias = torch.matmul(_ones(gradient), gradient, out=out).squeeze(-2)
        for_x = (gradient @ weight).view(x.shape) if ctx.needs_input_grad[0] else None
        return for_x, for_weight, for_bias, None, None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, branch: Branch) -> Tensor:
        ctx.biased, ctx.branch = bias is not None, branch
        alone = weight.dim() == 1
        y, mean, scale = torch.native_layer_norm(
            x, x.shape[-1:], weight if alone else None, bias if alone else None, eps
        )
        # torch's kernels know the weights of one model, not those of several.
        ctx.save_for_backward(x, mean, scale, weight, bias, None if alone else y)
        return y if alone else _scaled(y, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        x, mean, scale, weight, bias, plain = ctx.saved_tensors
        if plain is None:
            asked = (upstream[0].contiguous(), x, x.shape[-1:], mean, scale, weight, bias)
            with ctx.branch.forked(asked[0], x, mean, scale):
                _, for_weight, for_bias = _layer_norm_backward(*asked, [False, True, ctx.biased])
            for_x, _, _ = _layer_norm_backward(*asked, [True, False, False])
            return for_x, for_weight, for_bias if ctx.biased else None, None, None
        gradient = upstream[0].reshape(*weight.shape[:-1], -1, x.shape[-1])
        with ctx.branch.forked(gradient, plain):
            for_weight = _summed(gradient * plain.view(gradient.shape))
            for_bias = _summed(gradient) if ctx.biased else None
        inward = (gradient * weight.unsqueeze(-2)).view(x.shape)
        for_x, _, _ = _layer_norm_backward(inward, x, x.shape[-1:], mean, scale, None, None, [True, False, False])
        return for_x, for_weight, for_bias, None, None


class _Table(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int | None, branch: Branch) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding, ctx.branch = weight.shape, padding_idx, branch
        return rows_of(weight, ids)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        *lead, rows, columns = ctx.shape
        gradient = upstream[0].reshape(*lead, -1, columns)
        with ctx.branch.forked(gradient, ids):
            which = torch.arange(rows, device=ids.device)[:, None]
            asked = which == ids.reshape(*lead, 1, -1)
            if ctx.padding is not None:  # which is not learnt
                asked &= which != ctx.padding
            for_weight = asked.to(gradient.dtype) @ gradient
        return None, for_weight, None, None
