"""Layers of encoders of BERT's kind in few kernels, forward and backward, for one model or several side by side."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from calmix.kernels import Agrees, near, usable
from calmix.models import anatomy
from calmix.training.branching import capturing
from calmix.training.layout import joined
from calmix.training.using import ROWS, WARP, Use, padded

__all__ = ["Layers", "check_for", "side_by_side"]

# Those that call the parts of a layer by these names.
_KINDS = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
_ASKING = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))
_OTHERS = ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense",
           "output.LayerNorm")  # fmt: skip
_ASKED = "asked"  # the three of them as one
_NAMES = tuple(f"{part}.{kind}" for kind in ("weight", "bias") for part in (_ASKED, *_OTHERS))
# A head of a text is done at once, all its tokens beside all: longer texts are left to kernels made for them.
_LONGEST = 128
# Columns that a program of the activation does at a time.
_COLUMNS = 256
# The length of text that kernels are tried with before it is known how long texts are.
_TRIED = 32


@dataclass(frozen=True)
class _Shape:
    """What kernels are compiled for."""

    hidden: int
    inner: int
    heads: int

    @property
    def size(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer's weights by name, those of queries, keys and values as one; and where its draws begin."""

    shape: _Shape
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


class Layers:
    """The layers of an encoder, whose forward and backward go around transformers' own.

    Between two products of matrices there is one kernel, where torch has four or five for biases, dropout, residuals
    and normalisation, and twice as many backward. Queries, keys and values are one product. Dropout is drawn by the
    kernels, from seeds that torch's generator draws for each forward.

    Args:
        model: whose layers they are.
        copies: of its weights, by name, those of `side_by_side` next to each other in memory.
    """

    def __init__(self, model: nn.Module, copies: Mapping[str, Tensor]) -> None:
        shape = cast(_Shape, _shape_of(model))
        self.device = next(model.parameters()).device
        self.lengths: dict[int, bool] = {}
        self.layers: list[_Layer] = []
        self.joined: dict[tuple[str, ...], Tensor] = {}
        for place, path in enumerate(anatomy(model).layers):
            weights = {}
            for kind, axis in (("weight", -2), ("bias", -1)):
                names = tuple(f"{path}.{part}.{kind}" for part in _ASKING)
                whole = joined([copies[name] for name in names], axis).requires_grad_()
                weights[f"{_ASKED}.{kind}"] = self.joined[names] = whole
                weights |= {f"{part}.{kind}": copies[f"{path}.{part}.{kind}"] for part in _OTHERS}
            self.layers.append(_Layer(shape, model.get_submodule(path), weights, 3 * place))

    @staticmethod
    def serves(model: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
        """Return whether the layers are what we take them for, and the kernels do what torch does with them."""
        able, check = device.type == "cuda" and dtype == torch.bfloat16, check_for(model)
        return able and check is not None and usable(check, device)

    def length_for(self, width: int) -> int | None:
        """Return the length that kernels are compiled for to serve texts of a width; None if they cannot serve them.

        Those for long texts want more of a GPU than every one has. A length is tried when it is first asked for, which
        must not happen during a capture: one that nobody has asked for before is not served there.
        """
        length = _length(width)
        if width > _LONGEST or (length not in self.lengths and capturing()):
            return None
        if length not in self.lengths:
            self.lengths[length] = usable(_check_of(self.layers[0].shape, length), self.device)
        return length if self.lengths[length] else None

    def fit(self, mask: Tensor) -> bool:
        """Return whether they can be used for texts: short ones, and so many that places in memory have 32 bits.

        Nor if somebody expects to be told what goes on inside a layer, or edits it: that must be transformers'.
        """
        shape = self.layers[0].shape
        most = mask.numel() * max(3 * shape.hidden, shape.inner)
        inside = (part for layer in self.layers for part in layer.module.modules() if part is not layer.module)
        watched = any(part._forward_hooks or part._forward_pre_hooks for part in inside)
        return self.length_for(mask.shape[-1]) is not None and most < 2**31 and not watched

    @property
    def sites(self) -> int:
        """How often something is dropped."""
        return 3 * len(self.layers)

    @contextmanager
    def used(self, use: Use) -> Iterator[None]:
        """Inside the block, have the model's layers computed by kernels."""
        with ExitStack() as held:
            for layer in self.layers:
                layer.module.forward = partial(_forward, layer, use)
                held.callback(vars(layer.module).pop, "forward", None)
            yield

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of weights that were used as one, by their own names, and clear them."""
        found: dict[str, Tensor] = {}
        for names, whole in self.joined.items():
            if whole.grad is not None:
                axis = -2 if names[0].endswith("weight") else -1
                found |= zip(names, whole.grad.chunk(len(names), axis), strict=True)
                whole.grad = None
        return found


def side_by_side(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of the weights whose copies are to lie next to each other: of queries, keys and values."""
    layers = anatomy(model).layers
    return [tuple(f"{path}.{part}.{kind}" for part in _ASKING) for path in layers for kind in ("weight", "bias")]


def _shape_of(model: nn.Module) -> _Shape | None:
    """Return what the kernels have to know of a model's layers; None if these are not what we take them for."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _KINDS or config.is_decoder or config.add_cross_attention:
        return None
    shape = _Shape(config.hidden_size, config.intermediate_size, config.num_attention_heads)
    layers: list[Any] = [model.get_submodule(path) for path in anatomy(model).layers]
    if shape.size not in (16, 32, 64, 128) or not layers:
        return None
    for layer in layers:
        parts = [layer.get_submodule(name) for name in (*_ASKING, *_OTHERS)]
        wanted = [nn.LayerNorm if name.endswith("LayerNorm") else nn.Linear for name in (*_ASKING, *_OTHERS)]
        if (
            any(type(part) is not kind for part, kind in zip(parts, wanted, strict=True))
            or not all(weight.requires_grad for weight in layer.parameters())
            or len(list(layer.parameters())) != 2 * len(parts)
            or getattr(layer.intermediate.intermediate_act_fn, "act", None) is not functional.gelu
            or any("forward" in vars(inside) for inside in layer.modules())
        ):
            return None
    return shape


def _forward(layer: _Layer, use: Use, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
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

    def __init__(self, layer: _Layer, use: Use) -> None:
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
        length, shape = _length(self.use.width), self.layer.shape
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


def _length(width: int) -> int:
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


def check_for(model: nn.Module) -> Agrees | None:
    """Return what tries the kernels for a model's layers; None if these are not what we take them for."""
    shape = _shape_of(model)
    return None if shape is None else _check_of(shape, _TRIED)


@cache
def _check_of(shape: _Shape, length: int) -> Agrees:
    """Return the check for layers of a shape and texts of a length; the same each time it is asked for."""
    return partial(_agrees_with_torch, shape, length)


@torch.enable_grad()
def _agrees_with_torch(shape: _Shape, length: int, device: torch.device) -> bool:
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
    for part in (_ASKED, *_OTHERS):
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
    mine = _forward(_Layer(shape, module, weights, 0), use, hidden)
    theirs = _as_torch_does(shape, weights, hidden, mask)
    upstream = drawn(*hidden.shape).detach()
    asked = [hidden, *weights.values()]
    pairs = zip(torch.autograd.grad(mine, asked, upstream), torch.autograd.grad(theirs, asked, upstream), strict=True)
    return all(near(found, wanted) for found, wanted in [(mine, theirs), *pairs])


def _norm() -> Any:
    made: Any = nn.Module()
    made.LayerNorm = nn.LayerNorm(1)
    return made


def _as_torch_does(shape: _Shape, weights: Mapping[str, Tensor], hidden: Tensor, mask: Tensor) -> Tensor:
    runs, found = len(weights["asked.bias"]), []
    for run, (x, seen) in enumerate(zip(hidden.chunk(runs), mask.bool().chunk(runs), strict=True)):
        own = {name: weight[run].float() for name, weight in weights.items()}

        def linear(x: Tensor, part: str, own: Mapping[str, Tensor] = own) -> Tensor:
            return functional.linear(x, own[f"{part}.weight"], own[f"{part}.bias"])

        def norm(x: Tensor, part: str, own: Mapping[str, Tensor] = own) -> Tensor:
            return functional.layer_norm(x, x.shape[-1:], own[f"{part}.weight"], own[f"{part}.bias"])

        heads = linear(x.float(), _ASKED).view(*x.shape[:2], 3, shape.heads, shape.size).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None, None])
        out = linear(out.transpose(1, 2).flatten(2), "attention.output.dense")
        attended = norm(out + x.float(), "attention.output.LayerNorm")
        out = linear(functional.gelu(linear(attended, "intermediate.dense")), "output.dense")
        found.append(norm(out + attended, "output.LayerNorm"))
    return torch.cat(found)
