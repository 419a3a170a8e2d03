"""The vectors that an encoder of BERT's kind begins with, in one kernel each way, for one model or several at once."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from calmix.kernels import Agrees, near, usable
from calmix.models import anatomy
from calmix.training.calling import rows_of
from calmix.training.using import ROWS, WARP, Use, aligned, padded

__all__ = ["Embeddings", "check_for"]

# Those that count positions from the first token on, and add three vectors under these names.
_KINDS = ("bert", "electra")
_TABLES = ("word_embeddings", "token_type_embeddings", "position_embeddings")
_NAMES = (*(f"{name}.weight" for name in _TABLES), "LayerNorm.weight", "LayerNorm.bias")


@dataclass(frozen=True, eq=False)
class _Tables:
    """Three tables of vectors, and how their sum is normalised."""

    weights: tuple[Tensor, ...]
    padding: int
    """The word that is not learnt; -1 if there is none."""
    eps: float


class Embeddings:
    """The embeddings of an encoder, which go around transformers' own.

    Three vectors are looked up, added, normalised and dropped by one kernel, where torch has eight, and several models'
    twice as many. Which words occur where is sorted out beside the forward pass, so that their gradients are one kernel
    at the end of the backward pass, where nothing is left to run beside it.
    """

    def __init__(self, model: nn.Module, copies: Mapping[str, Tensor]) -> None:
        path = _path(model)
        self.module = cast(Any, model.get_submodule(path))
        padding = self.module.word_embeddings.padding_idx
        weights = tuple(copies[f"{path}.{name}"] for name in _NAMES)
        self.tables = _Tables(weights, -1 if padding is None else padding, self.module.LayerNorm.eps)

    @staticmethod
    def serves(model: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
        """Return whether the embeddings are what we take them for, and the kernels do what torch does with them."""
        able, check = device.type == "cuda" and dtype == torch.bfloat16, check_for(model)
        return able and check is not None and usable(check, device)

    @contextmanager
    def used(self, use: Use, site: int) -> Iterator[None]:
        """Inside the block, have the model's embeddings computed by kernels; dropout draws from one of the seeds."""
        table = self.module.word_embeddings
        self.module.forward = partial(self._forward, use, site)
        table.forward = partial(_looked_up, self.tables, use)
        try:
            yield
        finally:
            for module in (self.module, table):
                vars(module).pop("forward", None)

    def _forward(self, use: Use, site: int, input_ids: Any = None, token_type_ids: Any = None, **others: Any) -> Tensor:
        parts = dict(self.module.named_children())
        words = parts.pop("word_embeddings")
        watched = any(part._forward_hooks or part._forward_pre_hooks for part in parts.values())
        if watched or input_ids is None or others.get("position_ids") is not None:
            found: Tensor = type(self.module).forward(self.module, input_ids, token_type_ids, **others)
            return found
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        dropped = (site, self.module.dropout.p if self.module.training else 0.0)
        # Who edits the vectors of words, or looks at them, gets them on their own.
        given = bool(words._forward_hooks or words._forward_pre_hooks)
        return _embedded(self.tables, use, dropped, input_ids, types, words(input_ids) if given else None)


def _embedded(
    tables: _Tables, use: Use, dropped: tuple[int, float], ids: Tensor, types: Tensor, given: Tensor | None = None
) -> Tensor:
    words, *others = tables.weights
    use.uses.update(map(id, others if given is not None else tables.weights))
    vectors = words if given is None else aligned(given)
    told = (aligned(ids) if given is None else None, aligned(types), tables, use, dropped)
    found: Tensor = _Passes.apply(*told, vectors, *others)  # type: ignore[no-untyped-call]
    return found


def _looked_up(tables: _Tables, use: Use, ids: Tensor) -> Tensor:
    use.uses[id(tables.weights[0])] += 1
    found: Tensor = _Words.apply(ids, tables, use, tables.weights[0])  # type: ignore[no-untyped-call]
    return found


class _Words(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, tables: _Tables, use: Use, words: Tensor) -> Tensor:
        with use.beside(ids, lane="words"):
            ctx.found = _Found(ids, words, tables, use)
        return rows_of(words, ids)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, None, Tensor]:
        back = upstream[0].contiguous()
        with ctx.found.use.beside(back, lane="words"):
            return None, None, None, ctx.found.collected(back)


class _Found:
    """Which words occur where in a batch, and room for their gradients: made beside the forward pass."""

    def __init__(self, ids: Tensor, words: Tensor, tables: _Tables, use: Use) -> None:
        self.use, self.padding, (self.count, self.size) = use, tables.padding, words.shape[-2:]
        flat = ids.reshape(use.runs, -1)
        if use.runs > 1:
            flat = flat + torch.arange(0, use.runs * self.count, self.count, device=ids.device)[:, None]
        self.words, self.order = torch.sort(flat.flatten(), stable=True)
        self.table, self.out = words, cast("Tensor | None", use.home(words).zero_())

    def collected(self, back: Tensor) -> Tensor:
        """Return the gradient of the table."""
        # Let go of: a tensor that nobody else holds is taken as it is, and what comes next must not write over it.
        out, self.out = self.use.home(self.table).zero_() if self.out is None else self.out, None
        given = (back, self.words, self.order, out, len(self.words), self.count, self.padding)
        _kernels().collect[(len(self.words),)](*given, **padded(self.size, rows=16, warp=2048))
        return out


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids: Tensor | None,
        types: Tensor,
        tables: _Tables,
        use: Use,
        dropped: tuple[int, float],
        *weights: Tensor,
    ) -> Tensor:
        words, kinds, positions, weight, _ = weights
        size, rows = weight.shape[-1], [table.shape[-2] for table in (words, kinds, positions)]
        y, z = (weight.new_empty(*types.shape, size) for _ in range(2))
        mean, scale = (weight.new_empty(types.numel(), dtype=torch.float32) for _ in range(2))
        read = types if ids is None else ids
        given = (read, types, *weights, use.seeds, y, z, mean, scale, use.tokens, use.width, *rows, *dropped)
        _kernels().embed[use.tokens, use.runs](*given, tables.eps, **padded(size), GIVEN=ids is None)
        with use.beside(types, read, lane="words"):
            ctx.found = None if ids is None else _Found(ids, words, tables, use)
            lead = weight.shape[:-1]
            ctx.of_kinds = _who(rows[1], types.reshape(*lead, 1, -1)).to(y.dtype)
            place = torch.arange(use.tokens, device=types.device) % use.width
            ctx.of_positions = _who(rows[2], place).to(y.dtype).expand(*lead, -1, -1)
        ctx.save_for_backward(z, mean, scale, *weights[1:])
        ctx.use, ctx.dropped = use, dropped
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        z, mean, scale, kinds, positions, weight, shift = ctx.saved_tensors
        use, size = ctx.use, weight.shape[-1]
        by_z, parts = torch.empty_like(z), use.parts(2, size, use.blocks)
        given = (upstream[0].contiguous(), z, mean, scale, weight, use.seeds, by_z, parts, use.tokens)
        _kernels().embed_back[use.blocks, use.runs](*given, *ctx.dropped, **padded(size, rows=ROWS, warp=WARP))
        with use.beside(parts):
            by_weight, by_shift = use.totals(parts, weight, shift)
        with use.beside(by_z, lane="words"):
            by_words = by_z if ctx.found is None else ctx.found.collected(by_z)
            grouped = use.grouped(by_z)
            by_kinds = use.matrix(kinds, ctx.of_kinds.transpose(-1, -2), grouped)
            by_positions = use.matrix(positions, ctx.of_positions.transpose(-1, -2), grouped)
        return (*[None] * 5, by_words, by_kinds, by_positions, by_weight, by_shift)


def _who(rows: int, asked: Tensor) -> Tensor:
    """Return whether each row of a table was looked up by each token."""
    return torch.arange(rows, device=asked.device)[:, None] == asked


def _kernels() -> Any:
    """Return the module of kernels, for which there is Triton only where there is a GPU."""
    from calmix.kernels import embedding

    return embedding


def _path(model: nn.Module) -> str:
    return anatomy(model).embeddings.rpartition(".")[0]


def _size_of(model: nn.Module) -> int | None:
    """Return how many numbers a vector has, if the embeddings are what we take them for."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _KINDS:
        return None
    module: Any = model.get_submodule(_path(model))
    tables = [getattr(module, name, None) for name in _TABLES]
    if (
        any(type(table) is not nn.Embedding or table.max_norm is not None for table in tables)
        or {name for name, _ in module.named_parameters()} != set(_NAMES)
        or not all(weight.requires_grad for weight in module.parameters())
        or any("forward" in vars(inside) for inside in module.modules())
    ):
        return None
    size: int = module.word_embeddings.embedding_dim
    return size


def check_for(model: nn.Module) -> Agrees | None:
    """Return what tries the kernels for a model's embeddings; None if these are not what we take them for."""
    size = _size_of(model)
    return None if size is None else _check_of(size)


@cache
def _check_of(size: int) -> Agrees:
    """Return the check for vectors of a size; the same each time it is asked for."""
    return partial(_agrees_with_torch, size)


@torch.enable_grad()
def _agrees_with_torch(size: int, device: torch.device) -> bool:
    """Return whether two runs' vectors are those that torch makes, and their gradients, where nothing is dropped."""
    generator = torch.Generator(device).manual_seed(0)  # nobody else's draws are to be others for it
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    runs, texts, width, rows = 2, 3, 9, (20, 2, 12)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_()

    weights = (*(drawn(runs, count, size) for count in rows), drawn(runs, size), drawn(runs, size))
    ids, types = (
        torch.randint(most, (runs * texts, width), generator=generator, device=device) for most in (rows[0] - 1, 2)
    )
    ids[:, 3:6] = 7  # more than one of them
    seeds = torch.zeros(1, dtype=torch.long, device=device)
    use = Use(runs, torch.ones_like(ids), seeds, None, Counter(), torch.empty_like)
    mine = _embedded(_Tables(weights, 3, 1e-5), use, (0, 0.0), ids, types)
    theirs = []
    for run, (of, kind) in enumerate(zip(ids.chunk(runs), types.chunk(runs), strict=True)):
        words, kinds, positions, weight, shift = (each[run].float() for each in weights)
        x = functional.embedding(of, words, padding_idx=3) + kinds[kind] + positions[:width]
        theirs.append(functional.layer_norm(x, (size,), weight, shift, 1e-5))
    upstream = drawn(*mine.shape).detach()
    found = torch.autograd.grad(mine, weights, upstream)
    wanted = torch.autograd.grad(torch.cat(theirs), weights, upstream.float())
    pairs = [(mine, torch.cat(theirs)), *zip(found, wanted, strict=True)]
    return all(near(one, other) for one, other in pairs)
