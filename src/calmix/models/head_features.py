"""What a classifier's head reads of many rows, and a layer before it that imitates the mean of all tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.errors import TrainingError
from calmix.models.anatomy import Anatomy
from calmix.models.encoding import Packed
from calmix.models.pixels import Pixels
from calmix.models.predicting import Arithmetic, predict_logits
from calmix.models.sites import head_input, pooled

__all__ = ["Inner", "Seen", "Watch", "inner_layer", "watching"]

# Rows and logits that are computed at a time, at least and at most.
_AT_ONCE, _LOGITS = 2048, 2**24
# Penalty of the regression that sets the inner layer, as a share of the mean squared length of what that layer reads.
_RIDGE = 0.02
# Activations that an inner layer may have: found by trying.
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh,
    nn.functional.gelu,
    torch.relu,
    nn.functional.silu,
    lambda x: x,
)


@dataclass(frozen=True, eq=False)
class Seen:
    """What was seen inside a network of some rows: [sequences, width] each."""

    features: Tensor
    """What the head read."""
    before: Tensor | None = None
    """What the inner layer read."""
    means: Tensor | None = None
    """The mean of the last hidden states, of length 1."""


class _Vectors:
    """Vectors that come in any order, put where they belong.

    They are copied: the first token's state is a view of the states of all tokens, which must not be kept.
    """

    def __init__(self, total: int) -> None:
        self.total, self.filled = total, 0
        self.values: Tensor | None = None

    def put(self, where: Tensor, vectors: Tensor) -> None:
        if self.values is None:
            with torch.inference_mode(False):  # or it could be used nowhere else
                self.values = torch.empty(self.total, vectors.shape[1], device=vectors.device)
        self.values[where.to(vectors.device)] = vectors.float()
        self.filled += len(where)

    def whole(self) -> Tensor | None:
        """Return all vectors; None where some are missing."""
        return self.values if self.filled == self.total else None


class Watch:
    """Looks into a network while it predicts."""

    def __init__(self, model: nn.Module, parts: Anatomy) -> None:
        self.model, self.parts = model, parts
        self.activation: Callable[[Tensor], Tensor] | None = None
        self.read: list[Any] = []
        self.inner: list[Any] = []
        self.hidden: list[Any] = []

    def look(
        self,
        packed: Packed | Pixels,
        rows: NDArray[np.int64],
        precision: Arithmetic,
        progress: Callable[[int], None] | None,
    ) -> Seen:
        """Return what passes inside the network for these rows."""
        counts = np.ones(len(rows), dtype=np.int64) if packed.counts is None else packed.counts[rows]
        first = counts.cumsum() - counts
        features, before, means = (_Vectors(int(counts.sum())) for _ in range(3))
        head: Any = self.model.get_submodule(self.parts.head)
        # Logits of a head that is about to be replaced are thrown away: of many classes, some rows at a time.
        step = max(_AT_ONCE, _LOGITS // head.out_features)
        for start in range(0, len(rows), step):

            def visit(places: NDArray[np.int64], inputs: dict[str, Tensor], start: int = start) -> None:
                here = places + start
                sequences = np.concatenate([np.arange(first[p], first[p] + counts[p]) for p in here])
                where = torch.from_numpy(sequences)
                read = pooled(self.read[-1], inputs, self.model.config).float()
                features.put(where, read)
                reads = self._before(read)
                mean = None if reads is None else self._means(inputs, len(read))
                if reads is not None and mean is not None and reads.shape == mean.shape == read.shape:
                    before.put(where, reads)
                    means.put(where, mean)

            some = rows[start : start + step]
            predict_logits(self.model, packed, rows=some, precision=precision, progress=progress, visit=visit)
        found = features.whole()
        assert found is not None
        if not bool(found.isfinite().all()):
            raise TrainingError("what the head reads is not finite before any training: look at the model's weights")
        return Seen(found, before.whole(), means.whole())

    def forget(self) -> None:
        """Make room for what the next forward shows: not all of them are told of."""
        for seen in (self.read, self.inner, self.hidden):
            seen.clear()

    def _before(self, features: Tensor) -> Tensor | None:
        """Return what the inner layer read, if the head reads what it made of that, through an activation alone."""
        if len(self.inner) != 1 or len(self.inner[0]) != 2:
            return None
        before: Tensor = self.inner[0][0].float()
        after: Tensor = self.inner[0][1].float()
        if before.dim() != 2 or after.shape != features.shape:
            return None
        if self.activation is None:
            # Where values are small some of them are much alike.
            nearest = min(_ACTIVATIONS, key=lambda f: float((f(after) - features).abs().max()))
            if not torch.allclose(nearest(after), features, rtol=2e-2, atol=1e-2):
                return None
            self.activation = nearest
        return before

    def _means(self, inputs: Mapping[str, Tensor], sequences: int) -> Tensor | None:
        mask = inputs.get("attention_mask")
        if len(self.hidden) != 1 or mask is None:
            return None
        hidden, mask = self.hidden[0].float(), mask.reshape(-1, mask.shape[-1])
        if hidden.shape[:2] != mask.shape or len(hidden) != sequences:
            return None
        shown = mask[..., None].float()
        return nn.functional.normalize((hidden * shown).sum(1) / shown.sum(1), dim=1)


@contextmanager
def watching(model: nn.Module, parts: Anatomy, *, inner: bool) -> Iterator[Watch]:
    """Yield what looks into a network."""
    watch = Watch(model, parts)
    with ExitStack() as held:
        watch.read = held.enter_context(head_input(model, parts))
        layer: Any = None if parts.inner is None else model.get_submodule(parts.inner)
        if inner and layer is not None and layer.bias is not None:
            base: Any = getattr(model, model.base_model_prefix)  # type: ignore[call-overload]
            hooks = [
                layer.register_forward_hook(lambda _, args, out: watch.inner.append((*args, out))),
                base.register_forward_hook(lambda _, args, out: watch.hidden.append(out[0])),
            ]
            for hook in hooks:
                held.callback(hook.remove)
        held.callback(model.register_forward_pre_hook(lambda *_: watch.forget()).remove)
        yield watch


@dataclass(frozen=True, eq=False)
class Inner:
    """Weights of the layer before the head."""

    weight: Tensor
    bias: Tensor
    activation: Callable[[Tensor], Tensor]

    def applied(self, seen: Seen) -> Seen:
        """Return what the head will read once these weights are in place."""
        assert seen.before is not None
        return Seen(self.activation(seen.before @ self.weight.T + self.bias))


def inner_layer(seen: Sequence[Seen], activation: Callable[[Tensor], Tensor] | None) -> Inner | None:
    """Return weights with which the inner layer imitates mean pooling; None where there is no such layer.

    A ridge regression from what the layer reads, towards a multiple of the identity: with few rows it is all that is
    known, and what a layer reads of the first token is not far from the mean of all. Values stay below 0.3 or so, where
    activations are nearly linear; ReLU is so above zero, where they are moved.
    """
    if activation is None or any(one.before is None or one.means is None for one in seen):
        return None
    before = torch.cat([one.before for one in seen if one.before is not None])
    means = torch.cat([one.means for one in seen if one.means is not None])
    center, target = before.mean(0), means.mean(0)
    if activation is torch.relu:
        target = target - means.amin(0)
    device = x.device if (x := before - center).device.type != "mps" else torch.device("cpu")  # which has no doubles
    x, y = x.to(device).double(), (means - means.mean(0)).to(device).double()
    squares = x.square().sum().clamp_min(1e-12)
    slope = (x * y).sum() / squares
    identity = torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
    ridge = _RIDGE * squares / len(x)
    solved = torch.linalg.solve(x.T @ x + ridge * identity, x.T @ (y - slope * x)) + slope * identity
    weight = solved.T.to(before)
    return Inner(weight, target - weight @ center, activation)
