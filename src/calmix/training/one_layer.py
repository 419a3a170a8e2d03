"""One layer of an encoder of BERT's kind, forward and backward, by kernels; and whether they do what torch does."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from calmix.kernels import Agrees, near
from calmix.training.using import ROWS, WARP, Use, padded

__all__ = ["ASKED", "ASKING", "OTHERS", "Layer", "Shape", "check_of", "forward", "length_of"]

ASKING = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))
OTHERS = ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense",
           "output.LayerNorm")  # fmt: skip
ASKED = "asked"  # the three of them as one
_NAMES = tuple(f"{part}.{kind}" for kind in ("weight", "bias") for part in (ASKED, *OTHERS))
# Columns that a program of the activation does at a time.
_COLUMNS = 256


@dataclass(frozen=True)
class Shape:
    """What kernels are compiled for."""

    hidden: int
    inner: int
    heads: int

    @property
    def size(self) -> int:
        """The numbers of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's weights by name, those of queries, keys and values as one; and where its draws begin."""

    shape: Shape
    module: Any
    weights: dict[str, Tensor]
    site: int

    @property
    def drops(self) -> tuple[float, ...]:
        """How much is dropped: of the weights of attention, and before either residual is added."""
        parts = (self.module.attention.self, self.module.attention.output, self.module.output)
        return tuple(part.dropout.p if self.module.training else 0.0 for part in parts)

    @property
    def eps(self) -> tuple[float, float]:
        """What keeps either normalisation from dividing by 0."""
        return self.module.attention.output.LayerNorm.eps, self.module.output.LayerNorm.eps


def forward(layer: Layer, use: Use, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return what the layer makes of each token's vector."""
    if hidden.shape[:-1] != use.mask.shape:
        raise ValueError(f"a layer got vectors of shape {tuple(hidden.shape)} for tokens of {tuple(use.mask.shape)}")
    weights = [layer.weights[name] for name in _NAMES]
    use.uses.update(map(id, weights))
    found: Tensor = _Passes.apply(hidden, _Work(layer, use), *weights)  # type: ignore[no-untyped-call]
    return found


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, work: "_Work", *_weights: Tensor) -> Tensor:
        x = work.use.grouped(hidden.contiguous())
        asked = work.product(x, "asked")
        seen = work.attend(asked)
        attended, first, *stats = work.add_norm(0, work.product(seen, "attention.output.dense"), x)
        wide = work.product(attended, "intermediate.dense")
        bent = work.gelu(wide)
        y, second, *others = work.add_norm(1, work.product(bent, "output.dense"), attended)
        ctx.save_for_backward(x, asked, seen, first, *stats, attended, wide, bent, second, *others)
        ctx.work = work
        return y.view(hidden.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, asked, seen, first, mean, scale, attended, wide, bent, second, mean2, scale2 = ctx.saved_tensors
        work: _Work = ctx.work
        found: dict[str, Tensor] = {}
        residual, back = work.add_norm_back(1, work.use.grouped(upstream[0].contiguous()), second, mean2, scale2, found)
        work.note("output.dense", back, bent, found)
        back = work.gelu_back(back @ work.weights["output.dense.weight"], wide, found)
        work.note("intermediate.dense", back, attended, found)
        residual = work.added(residual, back, "intermediate.dense")
        residual, back = work.add_norm_back(0, residual, first, mean, scale, found)
        work.note("attention.output.dense", back, seen, found)
        back = work.attend_back(back @ work.weights["attention.output.dense.weight"], asked, found)
        work.note("asked", back, x, found)
        for_x = work.added(residual, back, "asked").view(upstream[0].shape) if ctx.needs_input_grad[0] else None
        return (for_x, None, *(found[name] for name in _NAMES))


class _Work:
    """The kernels of one layer in one step, and the gradients of its weights."""

    def __init__(self, layer: Layer, use: Use) -> None:
        self.layer, self.use, self.weights = layer, use, layer.weights
        # What the forward drops the backward pass drops, whatever has become of the model in between.
        self.drops = layer.drops

    def product(self, x: Tensor, part: str) -> Tensor:
        """Return the product with a matrix, without its bias."""
        made: Tensor = x @ self.weights[f"{part}.weight"].transpose(-1, -2)
        return made

    def added(self, to: Tensor, back: Tensor, part: str) -> Tensor:
        """Add the gradient by what a matrix was multiplied with, in place: rounded once."""
        weight = self.weights[f"{part}.weight"]
        return to.addmm_(back, weight) if to.dim() == 2 else to.baddbmm_(back, weight)

    def note(self, part: str, back: Tensor, x: Tensor, found: dict[str, Tensor]) -> None:
        """Note the gradient by a matrix."""
        with self.use.beside(back, x):
            found[f"{part}.weight"] = self.use.matrix(self.weights[f"{part}.weight"], back, x)

    def attend(self, asked: Tensor) -> Tensor:
        """Return what each token attends to."""
        out = asked.new_empty(*asked.shape[:-1], self.layer.shape.hidden)
        given = (asked, self.weights["asked.bias"], self.use.mask, self.use.seeds, out)
        _attending().attend[self._heads](*given, *self._told, **self._sizes)
        return out

    def attend_back(self, by_out: Tensor, asked: Tensor, found: dict[str, Tensor]) -> Tensor:
        """Return the gradient by queries, keys and values; note that by their biases."""
        back, parts = torch.empty_like(asked), self.use.parts(1, asked.shape[-1], self.use.texts)
        given = (by_out, asked, self.weights["asked.bias"], self.use.mask, self.use.seeds, back, parts)
        _attending().attend_back[self._heads](*given, *self._told, **self._sizes)
        with self.use.beside(parts):
            (found["asked.bias"],) = self.use.totals(parts, self.weights["asked.bias"])
        return back

    @property
    def _heads(self) -> tuple[int, int]:
        return len(self.use.mask), self.layer.shape.heads

    @property
    def _told(self) -> tuple[int, int, int, float, float]:
        scaling = self.layer.module.attention.self.scaling
        return self.use.width, self.use.texts, self.layer.site, scaling, self.drops[0]

    @property
    def _sizes(self) -> dict[str, int]:
        length, shape = length_of(self.use.width), self.layer.shape
        return {"HEADS": shape.heads, "SIZE": shape.size, "LENGTH": length, "num_warps": length // 16}

    def add_norm(self, which: int, a: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the normalised sum, the sum, and the means and scales of its rows."""
        y, z, use = torch.empty_like(a), torch.empty_like(a), self.use
        mean, scale = (a.new_empty(use.runs * use.tokens, dtype=torch.float32) for _ in range(2))
        bias, weight, shift = (self.weights[name] for name in _NORMED[which])
        given = (a, bias, residual, weight, shift, use.seeds, y, z, mean, scale, use.tokens, *self._dropped(which))
        _layers().add_norm[use.tokens, use.runs](*given, self.layer.eps[which], **padded(a.shape[-1]))
        return y, z, mean, scale

    def add_norm_back(
        self, which: int, by_y: Tensor, z: Tensor, mean: Tensor, scale: Tensor, found: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients by the residual and by what was added to it; note those by the weights."""
        by_z, by_a, use = torch.empty_like(z), torch.empty_like(z), self.use
        parts = use.parts(3, z.shape[-1], use.blocks)
        bias, *norm = _NORMED[which]
        given = (by_y, z, mean, scale, self.weights[norm[0]], use.seeds, by_z, by_a, parts, use.tokens)
        _layers().add_norm_back[use.blocks, use.runs](
            *given, *self._dropped(which), **padded(z.shape[-1], rows=ROWS, warp=WARP)
        )
        with use.beside(parts):
            names = (*norm, bias)
            found |= zip(names, use.totals(parts, *(self.weights[name] for name in names)), strict=True)
        return by_z, by_a

    def _dropped(self, which: int) -> tuple[int, float]:
        return self.layer.site + 1 + which, self.drops[1 + which]

    def gelu(self, wide: Tensor) -> Tensor:
        """Return what the activation makes of it, its bias added."""
        y, bias = torch.empty_like(wide), self.weights["intermediate.dense.bias"]
        _layers().gelu[self._tiles](wide, bias, y, self.use.tokens, **self._tile)
        return y

    def gelu_back(self, by_y: Tensor, wide: Tensor, found: dict[str, Tensor]) -> Tensor:
        """Return the gradient by what the activation got; note that by the bias."""
        back, bias = torch.empty_like(wide), self.weights["intermediate.dense.bias"]
        parts = self.use.parts(1, wide.shape[-1], self.use.blocks)
        _layers().gelu_back[self._tiles](by_y, wide, bias, back, parts, self.use.tokens, **self._tile)
        with self.use.beside(parts):
            (found["intermediate.dense.bias"],) = self.use.totals(parts, bias)
        return back

    @property
    def _tiles(self) -> tuple[int, int, int]:
        return self.use.blocks, -(-self.layer.shape.inner // _COLUMNS), self.use.runs

    @property
    def _tile(self) -> dict[str, int]:
        return {"N": self.layer.shape.inner, "COLUMNS": _COLUMNS, "ROWS": ROWS, "num_warps": 1}


def length_of(width: int) -> int:
    """Return the length that kernels are compiled for to serve texts of a width."""
    return max(16, 1 << (width - 1).bit_length())


# The bias before each of the two normalisations, and its weight and shift.
_NORMED = (
    ("attention.output.dense.bias", "attention.output.LayerNorm.weight", "attention.output.LayerNorm.bias"),
    ("output.dense.bias", "output.LayerNorm.weight", "output.LayerNorm.bias"),
)


def _layers() -> Any:
    """Return the module of kernels, for which there is Triton only where there is a GPU."""
    from calmix.kernels import layers

    return layers


def _attending() -> Any:
    from calmix.kernels import attending

    return attending


@cache
def check_of(shape: Shape, length: int) -> Agrees:
    """Return the check for layers of a shape and texts of a length; the same each time it is asked for."""
    return partial(_agrees_with_torch, shape, length)


@torch.enable_grad()
def _agrees_with_torch(shape: Shape, length: int, device: torch.device) -> bool:
    """Return whether two runs of a layer give what torch gives, and its gradients, where nothing is dropped."""
    generator = torch.Generator(device).manual_seed(0)  # nobody else's draws are to be others for it
    # Triton's interpreter, in which this is tested where there is no GPU, has no products in bf16.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def drawn(*size: int) -> Tensor:
        numbers = torch.randn(size, generator=generator, device=device) / math.sqrt(size[-1])
        return numbers.to(dtype).requires_grad_()

    runs, texts, width, wide = 2, 2, length - 3, 3 * shape.hidden
    sizes = {"asked": (wide, shape.hidden), "intermediate.dense": (shape.inner, shape.hidden),
             "output.dense": (shape.hidden, shape.inner)}  # fmt: skip
    weights = {}
    for part in (ASKED, *OTHERS):
        size = sizes.get(part, (shape.hidden, shape.hidden))
        weights[f"{part}.bias"] = drawn(runs, size[0])
        weights[f"{part}.weight"] = drawn(runs, size[0]) if part.endswith("LayerNorm") else drawn(runs, *size)
    hidden = (drawn(runs * texts, width, shape.hidden) * math.sqrt(shape.hidden)).detach().requires_grad_()
    mask = (torch.arange(width, device=device) < torch.tensor([[width], [9], [length // 2], [1]], device=device)).long()
    module = nn.Module().eval()
    module.attention, module.output = nn.Module(), _norm()
    module.attention.self, module.attention.output = nn.Module(), _norm()
    module.attention.self.scaling = shape.size**-0.5
    seeds = torch.zeros(3, dtype=torch.long, device=device)
    use = Use(runs, mask, seeds, None, Counter(), torch.empty_like)
    mine = forward(Layer(shape, module, weights, 0), use, hidden)
    theirs = _as_torch_does(shape, weights, hidden, mask)
    upstream = drawn(*hidden.shape).detach()
    asked = [hidden, *weights.values()]
    pairs = zip(torch.autograd.grad(mine, asked, upstream), torch.autograd.grad(theirs, asked, upstream), strict=True)
    return all(near(found, wanted) for found, wanted in [(mine, theirs), *pairs])


def _norm() -> Any:
    made: Any = nn.Module()
    made.LayerNorm = nn.LayerNorm(1)
    return made


def _as_torch_does(shape: Shape, weights: Mapping[str, Tensor], hidden: Tensor, mask: Tensor) -> Tensor:
    runs, found = len(weights["asked.bias"]), []
    for run, (x, seen) in enumerate(zip(hidden.chunk(runs), mask.bool().chunk(runs), strict=True)):
        own = {name: weight[run].float() for name, weight in weights.items()}

        def linear(x: Tensor, part: str, own: Mapping[str, Tensor] = own) -> Tensor:
            return functional.linear(x, own[f"{part}.weight"], own[f"{part}.bias"])

        def norm(x: Tensor, part: str, own: Mapping[str, Tensor] = own) -> Tensor:
            return functional.layer_norm(x, x.shape[-1:], own[f"{part}.weight"], own[f"{part}.bias"])

        heads = linear(x.float(), ASKED).view(*x.shape[:2], 3, shape.heads, shape.size).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None, None])
        out = linear(out.transpose(1, 2).flatten(2), "attention.output.dense")
        attended = norm(out + x.float(), "attention.output.LayerNorm")
        out = linear(functional.gelu(linear(attended, "intermediate.dense")), "output.dense")
        found.append(norm(out + attended, "output.LayerNorm"))
    return torch.cat(found)
