"""Multinomial logistic regression, and its conditional form for multiple choice, on a network's frozen features."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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

# Logits that are held at a time: rows times classes.
_CHUNK = 2**24

# The mean curvature p(1 − p) that a logit is taken to have where the problem is made round before it is solved.
_CURVATURE = 0.1


@dataclass(frozen=True, eq=False)
class Design:
    """The rows of a regression: features, and the targets that they are to predict."""

    features: Tensor
    """[rows, width]; of multiple choice [sequences, width], those of a row one after the other."""
    targets: Tensor
    """[rows, classes]: label distributions, already times class weights; a row of zeros does not count."""
    counts: NDArray[np.int64] | None = None
    """How many choices each row has; None where there are classes."""
    intercept: bool = True
    """Whether classes have a bias, too; choices need none."""

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: NDArray[np.int64]) -> "Design":
        """Return some of the rows."""
        if self.counts is None:
            where = torch.from_numpy(rows).to(self.features.device)
            return Design(self.features[where], self.targets[where], intercept=self.intercept)
        first = np.concatenate([[0], self.counts.cumsum()])[:-1]
        sequences = np.concatenate([np.arange(first[row], first[row] + self.counts[row]) for row in rows])
        features = self.features[torch.from_numpy(sequences).to(self.features.device)]
        return Design(features, self.targets[torch.from_numpy(rows).to(self.targets.device)], self.counts[rows])


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
        return scores if design.counts is None else _by_row(scores[:, 0], design.counts, design.targets.shape[1])


def fit_logistic_regression(
    design: Design, *, strength: float = 10.0, start: LogisticRegression | None = None
) -> LogisticRegression:
    """Return the regression with the lowest Σ cross-entropy + ‖weights‖² / (2C).

    The penalty is on centred features of mean length 1, so that C means the same for every network. The features are
    turned onto their principal axes and scaled until the problem is about round there: L-BFGS then needs tens of
    passes, not hundreds, even where a few directions are far longer than all others.
    """
    x, y = design.features, design.targets
    total = max(1.0, float(y.sum()))
    biased = design.intercept and design.counts is None
    axes = _Axes.of(x, counted=None if design.counts is not None else y.sum(1) > 0, centred=biased)
    turned = axes.turn(x)
    ridge = 1.0 / (strength * total)
    # The inverse root of each axis' curvature.
    scales = (_CURVATURE * axes.variances + ridge).rsqrt()
    outputs = 1 if design.counts is not None else y.shape[1]
    theta = torch.zeros(x.shape[1], outputs, device=x.device, dtype=x.dtype)
    offset = torch.zeros(outputs, device=x.device, dtype=x.dtype)
    if start is not None:
        theta = axes.inward(start.weight) / scales[:, None]
        offset = start.bias + start.weight @ axes.mean
    elif biased:
        offset = (y.sum(0).clamp_min(0.5) / total).log()
    theta.grad, offset.grad = torch.zeros_like(theta), torch.zeros_like(offset)
    solver: Any = torch.optim.LBFGS(
        [theta, offset] if biased else [theta],
        max_iter=100,
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
        for rows_here, sequences in _chunks(design):
            scored = torch.addmm(offset, turned[sequences], weights)
            if design.counts is not None:
                scored = _by_row(scored[:, 0], design.counts[rows_here], y.shape[1])
            logs, wanted = torch.log_softmax(scored, 1), y[rows_here]
            value = value - (wanted * logs.clamp_min(-1e30)).sum() / total
            error = (logs.exp() * wanted.sum(1, keepdim=True) - wanted) / total
            if design.counts is not None:
                error = error[_present(design.counts[rows_here], y.shape[1], error.device)][:, None]
            slope = slope.addmm(turned[sequences].T, error)
            slope_of_offset = slope_of_offset + error.sum(0)
        theta.grad, offset.grad = scales[:, None] * slope, slope_of_offset
        return value

    solver.step(loss)
    weight = axes.outward(scales[:, None] * theta)
    bias = offset - weight @ axes.mean if biased else torch.zeros(outputs, device=x.device, dtype=x.dtype)
    return LogisticRegression(weight, bias, strength)


def best_strength(
    train: Design, held_out: Design, *, strengths: Sequence[float] = STRENGTHS
) -> tuple[LogisticRegression, float]:
    """Return the regression whose C gives the lowest cross-entropy on rows held out, and that cross-entropy."""

    def fitted(strength: float, near: LogisticRegression | None) -> tuple[float, LogisticRegression]:
        found = fit_logistic_regression(train, strength=strength, start=near)
        return _mean_cross_entropy(found.logits(held_out), held_out.targets), found

    _, lowest, best = _lowest(fitted, strengths)
    return best, lowest


def cross_fitted(
    design: Design, folds: NDArray[np.int64], *, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, Tensor]:
    """Return the C with the lowest cross-entropy, and what was said with it of each row by those fitted without it.

    `folds` says which part each row is in; rows of part −1 are always learnt from and are said nothing of (NaN).
    """
    parts = [np.flatnonzero(folds == part) for part in range(int(folds.max()) + 1)]
    judged = torch.from_numpy(np.flatnonzero(folds >= 0)).to(design.targets.device)
    learnt = [design.take(np.flatnonzero(folds != part)) for part in range(len(parts))]
    held = [design.take(rows) for rows in parts]

    def fitted(
        strength: float, near: tuple[list[LogisticRegression], Tensor] | None
    ) -> tuple[float, tuple[list[LogisticRegression], Tensor]]:
        said = torch.full_like(design.targets, float("nan"))
        fits = []
        for part, rows in enumerate(parts):
            start = None if near is None else near[0][part]
            fits.append(fit_logistic_regression(learnt[part], strength=strength, start=start))
            logits = fits[-1].logits(held[part])
            said[torch.from_numpy(rows).to(said.device), : logits.shape[1]] = logits
        return _mean_cross_entropy(said[judged], design.targets[judged]), (fits, said)

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
    def of(cls, features: Tensor, counted: Tensor | None, *, centred: bool) -> "_Axes":
        kept = features if counted is None or bool(counted.all()) else features[counted]
        mean = kept.mean(0) if centred else torch.zeros_like(kept[0])
        spread = kept - mean
        length = float(spread.square().sum(1).mean().sqrt().clamp_min(1e-12))
        spread = spread / length
        variances, axes = torch.linalg.eigh((spread.T @ spread / len(spread)).double())
        return cls(mean, axes.to(features.dtype), variances.clamp_min(0).to(features.dtype), length)

    def turn(self, features: Tensor) -> Tensor:
        return (features - self.mean) @ self.axes / self.length

    def outward(self, weights: Tensor) -> Tensor:
        """Return weights on the axes [width, outputs] as weights on the features [outputs, width]."""
        return (self.axes @ weights / self.length).T

    def inward(self, weight: Tensor) -> Tensor:
        return self.axes.T @ weight.T * self.length


def _chunks(design: Design) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the rows, few enough to hold their logits at a time, and of their sequences."""
    step = max(1, _CHUNK // design.targets.shape[1])
    ends = None if design.counts is None else np.concatenate([[0], design.counts.cumsum()])
    for start in range(0, len(design), step):
        stop = min(start + step, len(design))
        yield slice(start, stop), slice(start, stop) if ends is None else slice(int(ends[start]), int(ends[stop]))


def _mean_cross_entropy(logits: Tensor, targets: Tensor) -> float:
    logs, wanted = torch.log_softmax(logits.double(), 1).clamp_min(-1e30), targets.double()
    return float(-(wanted * logs).sum() / wanted.sum().clamp_min(1e-12))


def _present(counts: NDArray[np.int64], width: int, device: torch.device) -> Tensor:
    return torch.from_numpy(np.arange(width) < counts[:, None]).to(device)


def _by_row(scores: Tensor, counts: NDArray[np.int64], width: int) -> Tensor:
    """Return the scores of sequences as [rows, choices]; −inf where a row has fewer."""
    present = _present(counts, width, scores.device)
    rows = torch.full(present.shape, float("-inf"), device=scores.device, dtype=scores.dtype)
    return rows.masked_scatter(present, scores)
