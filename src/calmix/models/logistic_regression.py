"""Multinomial logistic regression, and its conditional form for multiple choice, on a network's frozen features."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "Design",
    "LogisticRegression",
    "best_strength",
    "cross_fitted",
    "fit_logistic_regression",
    "stratified_folds",
]

T = TypeVar("T")

# Strengths that are tried, each the C of scikit-learn for features of mean length 1.
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)

# Logits (rows times classes) that are held at a time: on a processor they should stay in its cache.
_CHUNK_ON_CPU, _CHUNK = 2**20, 2**24
# Logits that are computed for one regression: with tens of thousands of rows and thousands of classes it is stopped
# before it has converged, which fine-tuning makes up for.
_WORK = 2**33

# The mean curvature p(1 − p) that a logit is taken to have where the problem is made round before it is solved.
_CURVATURE = 0.1


@dataclass(frozen=True, eq=False)
class Design:
    """The rows of a regression: features, and what they are to predict; made by `of_labels` or `of_distributions`."""

    features: Tensor
    """[rows, width]; of multiple choice [sequences, width], those of a row one after the other."""
    targets: Tensor
    """[rows]: labels. Or [rows, outputs]: label distributions, times what each label counts."""
    mass: Tensor
    """[rows]: how much each row counts."""
    outputs: int
    """How many classes there are, or choices at most."""
    counts: NDArray[np.int64] | None = None
    """How many choices each row has; None where there are classes."""
    intercept: bool = True
    """Whether classes have a bias, too; choices need none."""

    @classmethod
    def of_labels(
        cls,
        features: Tensor,
        labels: Tensor,
        outputs: int,
        *,
        class_weights: Tensor | None = None,
        counts: NDArray[np.int64] | None = None,
        intercept: bool = True,
    ) -> "Design":
        """Return rows of which each has a label; those labelled −1 do not count."""
        labels = labels.to(features.device)
        mass, known = (labels >= 0).to(features.dtype), labels.clamp_min(0)
        if class_weights is not None:
            mass = mass * class_weights.to(features.device, features.dtype)[known]
        return cls(features, known, mass, outputs, counts, intercept)

    @classmethod
    def of_distributions(
        cls,
        features: Tensor,
        targets: Tensor,
        *,
        class_weights: Tensor | None = None,
        counts: NDArray[np.int64] | None = None,
        intercept: bool = True,
    ) -> "Design":
        """Return rows of which each has a distribution over the labels; those of zeros do not count."""
        targets = targets.to(features.device, features.dtype)
        if class_weights is not None:
            targets = targets * class_weights.to(targets)
        return cls(features, targets, targets.sum(1), targets.shape[1], counts, intercept)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def biased(self) -> bool:
        """Whether a bias is fitted."""
        return self.intercept and self.counts is None

    def take(self, rows: NDArray[np.int64]) -> "Design":
        """Return some of the rows."""
        where = torch.from_numpy(rows).to(self.features.device)
        sequences, counts = where, None
        if self.counts is not None:
            counts = self.counts[rows]
            first = (self.counts.cumsum() - self.counts)[rows] - (counts.cumsum() - counts)
            spread = np.repeat(first, counts) + np.arange(counts.sum())
            sequences = torch.from_numpy(spread).to(self.features.device)
        return replace(
            self, features=self.features[sequences], targets=self.targets[where], mass=self.mass[where], counts=counts
        )

    def shares(self) -> Tensor:
        """Return how much all rows of each label count together."""
        if self.targets.dim() == 2:
            return self.targets.sum(0)
        return torch.zeros(self.outputs, device=self.mass.device).index_add_(0, self.targets, self.mass)

    def losses(self, logs: Tensor, rows: slice) -> Tensor:
        """Return the cross-entropy of some rows whose log-probabilities are given."""
        wanted = self.targets[rows]
        if wanted.dim() == 1:
            return -self.mass[rows] * logs.gather(1, wanted[:, None])[:, 0]
        return -(wanted * logs.clamp_min(-1e30)).sum(1)  # a choice that is not there has −inf, and 0 is wanted of it

    def errors(self, logs: Tensor, rows: slice) -> Tensor:
        """Return the gradient of these rows' cross-entropy in their logits."""
        wanted, found = self.targets[rows], logs.exp() * self.mass[rows, None]
        if wanted.dim() == 1:
            return found.scatter_add_(1, wanted[:, None], -self.mass[rows, None])
        return found.sub_(wanted)


@dataclass(frozen=True, eq=False)
class LogisticRegression:
    """A linear layer that predicts log-probabilities up to a constant."""

    weight: Tensor
    """[classes, width]; of multiple choice, [1, width]."""
    bias: Tensor
    strength: float
    """The C it was fitted with."""

    def logits(self, design: Design) -> Tensor:
        """Return the logits [rows, classes or choices]; choices that a row does not have are −inf."""
        scores = design.features @ self.weight.T + self.bias
        return scores if design.counts is None else _by_row(scores[:, 0], design.counts, design.outputs)

    def cross_entropy(self, design: Design) -> float:
        """Return the mean cross-entropy over what rows count."""
        total = 0.0
        for rows, sequences in _chunks(design):
            scores = design.features[sequences] @ self.weight.T + self.bias
            if design.counts is not None:
                scores = _by_row(scores[:, 0], design.counts[rows], design.outputs)
            total += float(design.losses(torch.log_softmax(scores, 1), rows).sum())
        return total / max(1e-12, float(design.mass.sum()))


def fit_logistic_regression(
    design: Design, *, strength: float = 10.0, start: LogisticRegression | None = None
) -> LogisticRegression:
    """Return the regression with the lowest Σ cross-entropy + ‖weights‖² / (2C).

    The penalty is on centred features of mean length 1, so that C means the same for every network. The features are
    turned onto their principal axes and scaled until the problem is about round there: L-BFGS then needs tens of
    passes, not hundreds, even where a few directions are far longer than all others.
    """
    return _fit(design, _Axes.of(design), strength, start)


def _fit(design: Design, axes: "_Axes", strength: float, start: LogisticRegression | None) -> LogisticRegression:
    x, biased = design.features, design.biased
    total = max(1.0, float(design.mass.sum()))
    turned = axes.turn(x)
    ridge = 1.0 / (strength * total)
    # The inverse root of each axis' curvature.
    scales = (_CURVATURE * axes.variances + ridge).rsqrt()
    outputs = design.outputs if design.counts is None else 1
    theta = torch.zeros(x.shape[1], outputs, device=x.device, dtype=x.dtype)
    offset = torch.zeros(outputs, device=x.device, dtype=x.dtype)
    if start is not None:
        theta = axes.inward(start.weight) / scales[:, None]
        offset = start.bias + start.weight @ axes.mean
    elif biased:
        offset = (design.shares().clamp_min(0.5) / total).log()
    theta.grad, offset.grad = torch.zeros_like(theta), torch.zeros_like(offset)
    solver: Any = torch.optim.LBFGS(
        [theta, offset] if biased else [theta],
        max_iter=min(100, max(10, _WORK // (len(design) * design.outputs))),
        tolerance_grad=1e-5,
        tolerance_change=1e-7,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        """Return the loss; leave its gradient, which is short enough to be written down, with the parameters."""
        weights = scales[:, None] * theta
        value = 0.5 * ridge * weights.square().sum()
        slope, slope_of_offset = ridge * weights, torch.zeros_like(offset)
        for rows, sequences in _chunks(design):
            scored = torch.addmm(offset, turned[sequences], weights)
            if design.counts is not None:
                scored = _by_row(scored[:, 0], design.counts[rows], design.outputs)
            logs = torch.log_softmax(scored, 1)
            value = value + design.losses(logs, rows).sum() / total
            error = design.errors(logs, rows) / total
            if design.counts is not None:
                error = error[_present(design.counts[rows], design.outputs, error.device)][:, None]
            slope = slope.addmm(turned[sequences].T, error)
            slope_of_offset = slope_of_offset + error.sum(0)
        theta.grad, offset.grad = scales[:, None] * slope, slope_of_offset
        return value

    solver.step(loss)
    weight = axes.outward(scales[:, None] * theta)
    bias = offset - weight @ axes.mean if biased else torch.zeros(outputs, device=x.device, dtype=x.dtype)
    return LogisticRegression(weight, bias, strength)


_Fits = tuple[dict[int, LogisticRegression], Tensor]


def best_strength(
    train: Design, held_out: Design, *, strengths: Sequence[float] = STRENGTHS
) -> tuple[LogisticRegression, float]:
    """Return the regression whose C gives the lowest cross-entropy on rows held out, and that cross-entropy."""
    axes = _Axes.of(train)

    def fitted(strength: float, near: LogisticRegression | None) -> tuple[float, LogisticRegression]:
        found = _fit(train, axes, strength, near)
        return found.cross_entropy(held_out), found

    _, lowest, best = _lowest(fitted, strengths)
    return best, lowest


def cross_fitted(
    design: Design, folds: NDArray[np.int64], *, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, Tensor]:
    """Return the C with the lowest cross-entropy, and what was said with it of each row by those fitted without it.

    `folds` says which part each row is in; rows of part −1 are always learnt from, and left out of what is returned.
    """
    judged = np.flatnonzero(folds >= 0)
    parts = [part for part in range(int(folds.max()) + 1) if (folds == part).any()]
    axes: dict[int, _Axes] = {}

    def fitted(strength: float, near: _Fits | None) -> tuple[float, _Fits]:
        said = torch.empty(len(judged), design.outputs, device=design.features.device, dtype=design.features.dtype)
        fits, loss = {}, 0.0
        for part in parts:
            train, out = design.take(np.flatnonzero(folds != part)), design.take(np.flatnonzero(folds == part))
            if part not in axes:
                axes[part] = _Axes.of(train)
            fits[part] = _fit(train, axes[part], strength, None if near is None else near[0][part])
            said[torch.from_numpy(folds[judged] == part).to(said.device)] = fits[part].logits(out)
            loss += fits[part].cross_entropy(out) * float(out.mass.sum())
        return loss, (fits, said)

    strength, _, (_, said) = _lowest(fitted, strengths)
    return strength, said


def _lowest(fitted: Callable[[float, T | None], tuple[float, T]], strengths: Sequence[float]) -> tuple[float, float, T]:
    """Return the strength with the lowest loss, that loss and the fit: from the middle one downhill.

    A fit begins where its neighbour has ended.
    """
    middle = len(strengths) // 2
    best = (strengths[middle], *fitted(strengths[middle], None))
    for way in (strengths[middle + 1 :], strengths[:middle][::-1]):
        went = False
        for strength in way:
            loss, found = fitted(strength, best[2])
            if loss >= best[1]:
                break
            best, went = (strength, loss, found), True
        if went:  # the loss has one valley
            break
    return best


def stratified_folds(labels: NDArray[np.int64], parts: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Return which of several parts each row is in, labels spread evenly; −1: a label's only row."""
    rng, folds = np.random.default_rng(seed), np.full(len(labels), -1, dtype=np.int64)
    turn = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) > 1:
            folds[rows] = (turn + np.arange(len(rows))) % parts
            turn += len(rows)
    return folds


@dataclass(frozen=True, eq=False)
class _Axes:
    """The principal axes of features, centred (or not) and scaled to a mean length of 1."""

    mean: Tensor
    axes: Tensor
    """[width, width]: one axis a column."""
    variances: Tensor
    length: float

    @classmethod
    def of(cls, design: Design) -> "_Axes":
        """Return the axes of the rows that count."""
        counted = design.mass > 0
        if design.counts is not None:
            counted = counted.repeat_interleave(torch.from_numpy(design.counts).to(counted.device))
        kept = design.features[counted] if bool(counted.any()) and not bool(counted.all()) else design.features
        mean = kept.mean(0) if design.biased else torch.zeros_like(kept[0])
        spread = kept - mean
        length = float(spread.square().sum(1).mean().sqrt().clamp_min(1e-12))
        spread = spread / length
        squares = spread.T @ spread / len(spread)
        exact = squares.cpu() if squares.device.type == "mps" else squares  # which has no doubles
        variances, axes = (found.to(squares) for found in torch.linalg.eigh(exact.double()))
        return cls(mean, axes, variances.clamp_min(0), length)

    def turn(self, features: Tensor) -> Tensor:
        return (features - self.mean) @ self.axes / self.length

    def outward(self, weights: Tensor) -> Tensor:
        """Return weights on the axes [width, outputs] as weights on the features [outputs, width]."""
        return (self.axes @ weights / self.length).T

    def inward(self, weight: Tensor) -> Tensor:
        return self.axes.T @ weight.T * self.length


def _chunks(design: Design) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the rows, few enough to hold their logits at a time, and of their sequences."""
    most = _CHUNK_ON_CPU if design.features.device.type == "cpu" else _CHUNK
    step = max(1, most // design.outputs)
    ends = None if design.counts is None else np.concatenate([[0], design.counts.cumsum()])
    for start in range(0, len(design), step):
        stop = min(start + step, len(design))
        yield slice(start, stop), slice(start, stop) if ends is None else slice(int(ends[start]), int(ends[stop]))


def _present(counts: NDArray[np.int64], width: int, device: torch.device) -> Tensor:
    return torch.from_numpy(np.arange(width) < counts[:, None]).to(device)


def _by_row(scores: Tensor, counts: NDArray[np.int64], width: int) -> Tensor:
    """Return the scores of sequences as [rows, choices]; −inf where a row has fewer."""
    present = _present(counts, width, scores.device)
    rows = torch.full(present.shape, float("-inf"), device=scores.device, dtype=scores.dtype)
    return rows.masked_scatter(present, scores)
