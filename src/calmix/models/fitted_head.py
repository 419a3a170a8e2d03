"""A classifier's head fitted to frozen features before fine-tuning, and made small.

A head that starts from random numbers sends random gradients into the encoder, and has to find its own direction first.
A logistic regression on what the head reads finds that direction in seconds. At full size it would have most training
rows right already, which then teach the encoder nothing; at a tenth of it all rows teach, in the right directions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.models.anatomy import anatomy
from calmix.models.encoding import Packed
from calmix.models.head_features import Seen, inner_layer, watching
from calmix.models.logistic_regression import (
    Design,
    best_strength,
    cross_fitted,
    fit_logistic_regression,
    stratified_folds,
)
from calmix.models.pixels import Pixels
from calmix.models.predicting import Arithmetic

__all__ = ["FACTOR", "FittedHead", "HeadStart", "fit_head_to"]

HeadStart = Literal["fitted", "random"]
"""Where the head begins: fitted to the training data, or drawn at random."""

FACTOR = 0.125
"""What a fitted head is multiplied by before fine-tuning: about a tenth, and exactly undone."""

# So many sequences are looked at, at most: more change little, and memory is bounded.
_MOST = 50_000
# Parts of cross-fitting, where no dev rows choose the strength; above so many rows, one part is held out instead.
_FOLDS, _FEW = 5, 2_000


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
    accuracy: float
    """How often it is right about the dev rows; without any, about training rows that other heads were fitted without.
    NaN where there was nothing to judge."""

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
    class_weights: Tensor | None = None,
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None = None,
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
        targets: [rows]: labels, or the right choices; rows of −1 do not count. Or [rows, classes or choices]: label
            distributions; rows of zeros do not count.
        class_weights: [classes]: how much each label counts in training.
        dev: rows, with labels, that choose how strongly weights are penalised.
        folds: which part each row is in, −1 for those always learnt from: the penalty is then chosen, and
            `fold_logits` are made, by cross-fitting over these parts. Without them and without dev rows, five.
        choose_by_dev: False takes no look at the labels of the dev rows, which are then told of alone.
        set_inner: set the dense layer before the head, too, so that it imitates the mean-pooled text.
        precision: of the network's arithmetic.
        progress: called with the number of rows after each batch.
    """
    parts = anatomy(model)
    head: Any = model.get_submodule(parts.head)
    rows = _subset(targets, packed.counts) if folds is None else np.arange(len(packed))
    with watching(model, parts, inner=set_inner) as watch:
        train = watch.look(packed, rows, precision, progress)
        held = None if dev is None else watch.look(dev[0], np.arange(len(dev[0])), precision, progress)
    weights: dict[str, Tensor] = {}
    inner = inner_layer([train] if held is None else [train, held], watch.activation) if set_inner else None
    if inner is not None:
        weights |= {f"{parts.inner}.weight": inner.weight, f"{parts.inner}.bias": inner.bias}
        train = inner.applied(train)
        held = None if held is None else inner.applied(held)
    intercept = head.bias is not None
    chosen = targets[torch.from_numpy(rows).to(targets.device)]
    counts = None if packed.counts is None else packed.counts[rows]
    design = _design(head, train, chosen, counts, class_weights)
    judged = None
    if held is not None and dev is not None:
        judged = _design(head, held, torch.from_numpy(dev[1]), dev[0].counts, None)
    out_of_fold, accuracy = None, float("nan")
    if judged is not None and choose_by_dev and folds is None:
        fitted, _ = best_strength(design, judged)
    else:
        of_rows = _parts_of(chosen, packed.counts) if folds is None else folds
        strength = 1.0
        if (of_rows >= 0).any():
            strength, said = cross_fitted(design, of_rows)
            asked = np.flatnonzero(of_rows >= 0)
            accuracy = _accuracy(said, design.take(asked))
            if folds is not None:
                out_of_fold = np.full((len(rows), design.outputs), np.nan, dtype=np.float32)
                out_of_fold[asked] = said.cpu().numpy()
        fitted = fit_logistic_regression(design, strength=strength)
    weights[f"{parts.head}.weight"] = fitted.weight
    if intercept:
        weights[f"{parts.head}.bias"] = fitted.bias
    said_of_dev = None
    if judged is not None:
        logits = fitted.logits(judged)
        accuracy, said_of_dev = _accuracy(logits, judged), logits.float().cpu().numpy()
    return FittedHead(weights, parts.head, fitted.strength, said_of_dev, out_of_fold, len(rows), accuracy)


def _design(
    head: Any, seen: Seen, targets: Tensor, counts: NDArray[np.int64] | None, class_weights: Tensor | None
) -> Design:
    settings: dict[str, Any] = {"class_weights": class_weights, "counts": counts, "intercept": head.bias is not None}
    if targets.dim() == 2:
        return Design.of_distributions(seen.features, targets, **settings)
    outputs = head.out_features if counts is None else int(counts.max())
    return Design.of_labels(seen.features, targets, outputs, **settings)


def _labels_of(targets: Tensor) -> NDArray[np.int64]:
    """Return the label of each row; −1 of those that do not count."""
    if targets.dim() == 2:
        targets = torch.where(targets.sum(1) > 0, targets.argmax(1), -1)
    return np.asarray(targets.cpu().numpy())


def _accuracy(logits: Tensor, design: Design) -> float:
    """Return the share of rows whose label has the highest logit, among those that count."""
    labels = design.targets if design.targets.dim() == 1 else design.targets.argmax(1)
    right = (logits.argmax(1) == labels)[design.mass > 0]
    return float(right.float().mean())


def _parts_of(targets: Tensor, counts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the parts of cross-fitting that rows are in: five of few rows, and of more a tenth alone."""
    labels = _labels_of(targets)
    if counts is not None:
        labels = np.minimum(labels, 0)  # the place of the right choice is no class
    few = len(labels) <= _FEW
    parts = stratified_folds(labels, _FOLDS if few else 10)
    return parts if few else np.where(parts == 0, 0, -1)


def _subset(targets: Tensor, counts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the rows that a head is fitted to: all that count, or a bounded share of each label, one row at least."""
    labels = _labels_of(targets)
    there = np.flatnonzero(labels >= 0)
    most = _MOST if counts is None else max(1, int(_MOST / counts.mean()))
    if len(there) <= most:
        return there
    order = there[np.argsort(labels[there], kind="stable")]  # every so many-th row, label after label
    spread = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    firsts = order[np.unique(labels[order], return_index=True)[1]]
    return np.union1d(spread, firsts if counts is None else spread)
