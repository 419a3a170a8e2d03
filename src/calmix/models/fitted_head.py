"""A classifier's head fitted to frozen features before fine-tuning, and made small.

A head that starts from random numbers sends random gradients into the encoder, and has to find its own direction first.
A logistic regression on what the head reads finds that direction in seconds. At full size it would have most training
rows right already, which then teach the encoder nothing; at a tenth of it all rows teach, in the right directions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.models.anatomy import Anatomy, anatomy
from calmix.models.encoding import Packed
from calmix.models.logistic_regression import (
    Design,
    best_strength,
    cross_fitted,
    fit_logistic_regression,
    stratified_folds,
)
from calmix.models.pixels import Pixels
from calmix.models.predicting import Arithmetic, predict_logits
from calmix.models.sites import head_input, pooled

__all__ = ["FACTOR", "FittedHead", "HeadStart", "fit_head_to"]

HeadStart = Literal["fitted", "random"]
"""Where the head begins: fitted to the training data, or drawn at random."""

FACTOR = 0.125
"""What a fitted head is multiplied by before fine-tuning: about a tenth, and exactly undone."""

# So many sequences are looked at, at most: more change little, and memory is bounded.
_MOST = 50_000
# Parts of cross-fitting, where no dev rows choose the strength; above so many rows, one part is held out instead.
_FOLDS, _FEW = 5, 2_000
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
class FittedHead:
    """A fitted head, at full size, and what it says."""

    weights: Mapping[str, Tensor]
    """By parameter name: the head's, and the inner layer's where that was set, too."""
    head: str
    """Where the head is in its network."""
    strength: float
    """The C of the regression: 1 / (2C) weighs the squared weights on features of mean length 1."""
    dev_logits: NDArray[np.float32] | None
    """What the network says of the dev rows with this head."""
    fold_logits: NDArray[np.float32] | None
    """What was said of each training row by a head fitted without it, where that was asked: NaN where none was."""
    rows: int
    """How many rows it was fitted to."""

    def on_cpu(self) -> "FittedHead":
        """Return the same head in main memory, to be sent to other processes."""
        return replace(self, weights={name: values.cpu() for name, values in self.weights.items()})

    def put_into(self, model: nn.Module, factor: float = 1.0) -> None:
        """Give a network this head, `factor` times its size."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, values in self.weights.items():
                parameters[name].copy_(values * (factor if name.startswith(f"{self.head}.") else 1.0))


def fit_head_to(
    model: nn.Module,
    packed: Packed | Pixels,
    targets: Tensor,
    *,
    dev: tuple[Packed | Pixels, Tensor] | None = None,
    folds: NDArray[np.int64] | None = None,
    choose_by_dev: bool = True,
    set_inner: bool = False,
    precision: Arithmetic = "fp32",
    progress: Callable[[int], None] | None = None,
) -> FittedHead:
    """Return a head fitted to what a network's last linear layer reads of these rows; the network stays as it is.

    Args:
        model: a classifier.
        packed: the training rows, texts or images.
        targets: [rows, classes or choices]: label distributions, times class weights; rows of zeros do not count.
        dev: rows, with targets, that choose how strongly weights are penalised.
        folds: which part each row is in, −1 for those always learnt from: the penalty is then chosen, and
            `fold_logits` are made, by cross-fitting over these parts. Without them and without dev rows, five.
        choose_by_dev: False takes no look at the labels of the dev rows, which are then told of alone.
        set_inner: set the dense layer before the head, too, so that it imitates the mean-pooled text.
        precision: of the network's arithmetic.
        progress: called with the number of rows after each batch.
    """
    parts = anatomy(model)
    rows = _subset(targets, packed.counts) if folds is None else np.arange(len(packed))
    with _watching(model, parts, inner=set_inner) as watch:
        train = watch.look(packed, rows, precision, progress)
        held = None if dev is None else watch.look(dev[0], np.arange(len(dev[0])), precision, progress)
    weights: dict[str, Tensor] = {}
    inner = _inner_layer([train] if held is None else [train, held], watch.activation) if set_inner else None
    if inner is not None:
        weights |= {f"{parts.inner}.weight": inner.weight, f"{parts.inner}.bias": inner.bias}
        train = inner.applied(train)
        held = None if held is None else inner.applied(held)
    head: Any = model.get_submodule(parts.head)
    intercept = head.bias is not None
    design = _design(train, targets, rows, packed.counts, intercept)
    out_of_fold = None
    judged = None if held is None or dev is None else _design(held, dev[1], None, dev[0].counts, intercept)
    if judged is not None and choose_by_dev and folds is None:
        fitted, _ = best_strength(design, judged)
    else:
        labels = targets[torch.from_numpy(rows).to(targets.device)].argmax(1).cpu().numpy()
        if packed.counts is not None:
            labels = np.zeros_like(labels)  # the place of the right choice is no class
        of_rows = folds if folds is not None else stratified_folds(labels, _FOLDS if len(rows) <= _FEW else 10)
        if folds is None and len(rows) > _FEW:
            of_rows = np.where(of_rows == 0, 0, -1)
        if (of_rows >= 0).any():
            strength, said = cross_fitted(design, of_rows)
            out_of_fold = said.cpu().numpy() if folds is not None else None
        else:
            strength = 1.0
        fitted = fit_logistic_regression(design, strength=strength)
    weights[f"{parts.head}.weight"] = fitted.weight
    if intercept:
        weights[f"{parts.head}.bias"] = fitted.bias
    said_of_dev = None if judged is None else fitted.logits(judged).float().cpu().numpy()
    return FittedHead(weights, parts.head, fitted.strength, said_of_dev, out_of_fold, len(rows))


@dataclass(frozen=True, eq=False)
class _Seen:
    """What was seen inside a network of some rows: [sequences, width] each."""

    features: Tensor
    """What the head read."""
    before: Tensor | None = None
    """What the inner layer read."""
    means: Tensor | None = None
    """The mean of the last hidden states, of length 1."""


class _Watch:
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
    ) -> _Seen:
        """Return what passes inside the network for these rows."""
        counts = np.ones(len(rows), dtype=np.int64) if packed.counts is None else packed.counts[rows]
        first = counts.cumsum() - counts
        found: list[list[tuple[Tensor, Tensor]]] = [[], [], []]

        def visit(places: NDArray[np.int64], inputs: dict[str, Tensor]) -> None:
            sequences = np.concatenate([np.arange(first[p], first[p] + counts[p]) for p in places])
            where = torch.from_numpy(sequences)
            features = pooled(self.read.pop(), inputs, self.model.config).float()
            found[0].append((where, features))
            before = self._before(features)
            means = self._means(inputs, len(features))
            if before is not None and means is not None:
                found[1].append((where, before))
                found[2].append((where, means))
            for seen in (self.read, self.inner, self.hidden):
                seen.clear()

        predict_logits(self.model, packed, rows=rows, precision=precision, progress=progress, visit=visit)
        total = int(counts.sum())
        features, before, means = (_in_order(pieces, total) for pieces in found)
        assert features is not None
        return _Seen(features, before, means)

    def _before(self, features: Tensor) -> Tensor | None:
        """Return what the inner layer read, if the head reads what it made of that, through an activation alone."""
        if len(self.inner) != 1:
            return None
        before, after = (tensor.float() for tensor in self.inner[0])
        if before.dim() != 2 or after.shape != features.shape:
            return None
        if self.activation is None:
            close = (f for f in _ACTIVATIONS if torch.allclose(f(after), features, rtol=2e-2, atol=1e-2))
            self.activation = next(close, None)
        return None if self.activation is None else before

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
def _watching(model: nn.Module, parts: Anatomy, *, inner: bool) -> Iterator[_Watch]:
    """Yield what looks into a network."""
    watch = _Watch(model, parts)
    with ExitStack() as held:
        watch.read = held.enter_context(head_input(model, parts))
        if inner and parts.inner is not None:
            base: Any = getattr(model, model.base_model_prefix)  # type: ignore[call-overload]
            layer = model.get_submodule(parts.inner)
            hooks = [
                layer.register_forward_hook(lambda _, args, out: watch.inner.append((args[0], out))),
                base.register_forward_hook(lambda _, args, out: watch.hidden.append(out[0])),
            ]
            for hook in hooks:
                held.callback(hook.remove)
        yield watch


@dataclass(frozen=True, eq=False)
class _Inner:
    """Weights of the layer before the head."""

    weight: Tensor
    bias: Tensor
    activation: Callable[[Tensor], Tensor]

    def applied(self, seen: _Seen) -> _Seen:
        """Return what the head will read once these weights are in place."""
        assert seen.before is not None
        return _Seen(self.activation(seen.before @ self.weight.T + self.bias))


def _inner_layer(seen: Sequence[_Seen], activation: Callable[[Tensor], Tensor] | None) -> _Inner | None:
    """Return weights with which the inner layer imitates mean pooling; None where there is no such layer.

    A ridge regression from what the layer reads, towards a multiple of the identity: with few rows it is all that is
    known, and what a layer reads of the first token is not far from the mean of all. Values stay below 0.3 or so, where
    activations are nearly linear.
    """
    if activation is None or any(one.before is None or one.means is None for one in seen):
        return None
    before = torch.cat([one.before for one in seen if one.before is not None])
    means = torch.cat([one.means for one in seen if one.means is not None])
    if before.shape != means.shape:
        return None
    center, target = before.mean(0), means.mean(0)
    x, y = (before - center).double(), (means - target).double()
    squares = x.square().sum().clamp_min(1e-12)
    slope = (x * y).sum() / squares
    identity = torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
    ridge = _RIDGE * squares / len(x)
    solved = torch.linalg.solve(x.T @ x + ridge * identity, x.T @ (y - slope * x)) + slope * identity
    weight = solved.T.to(before.dtype)
    return _Inner(weight, target - weight @ center, activation)


def _design(
    seen: _Seen, targets: Tensor, rows: NDArray[np.int64] | None, counts: NDArray[np.int64] | None, intercept: bool
) -> Design:
    chosen = targets if rows is None else targets[torch.from_numpy(rows).to(targets.device)]
    of_rows = counts if counts is None or rows is None else counts[rows]
    chosen = chosen.to(seen.features.device, seen.features.dtype)
    return Design(seen.features, chosen, of_rows, intercept=intercept)


def _subset(targets: Tensor, counts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the rows that a head is fitted to: all that count, or a bounded share of each label."""
    there = np.flatnonzero((targets.sum(1) > 0).cpu().numpy())
    most = _MOST if counts is None else int(_MOST / counts.mean())
    if len(there) <= most:
        return there
    labels = targets.argmax(1).cpu().numpy()[there]
    order = np.argsort(labels, kind="stable")  # every so many-th row, label after label
    return np.sort(there[order[np.linspace(0, len(there) - 1, most).astype(np.int64)]])


def _in_order(pieces: Sequence[tuple[Tensor, Tensor]], total: int) -> Tensor | None:
    """Return rows in their own order; None where some are missing."""
    if sum(len(where) for where, _ in pieces) != total:
        return None
    out = torch.empty(total, pieces[0][1].shape[1], device=pieces[0][1].device)
    for where, values in pieces:
        out[where.to(out.device)] = values
    return out
