"""Multinomial and conditional logistic regression."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import Largest
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn import linear_model

from calmix.models import logistic_regression
from calmix.models.logistic_regression import (
    STRENGTHS,
    Design,
    best_strength,
    cross_fitted,
    fit_logistic_regression,
    stratified_folds,
)


def rows(n: int, width: int, classes: int, *, apart: float = 0.5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of classes that overlap, and labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centers = rng.normal(size=(classes, width))
    features = apart * centers[labels] + rng.normal(size=(n, width)) + 3.0
    return torch.from_numpy(features).float(), torch.from_numpy(labels)


def rounded(features: torch.Tensor) -> np.ndarray:
    """Return features as the penalty sees them: centred, of mean length 1."""
    x = features.double().numpy()
    x = x - x.mean(0)
    return x / np.sqrt((x**2).sum(1).mean())


def conditional(n: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Return features of the choices of rows, the right choice of each row, and how many it has."""
    rng = np.random.default_rng(seed)
    counts = 2 + np.arange(n) % 3
    features = rng.normal(size=(counts.sum(), 6))
    first = counts.cumsum() - counts
    worth = features @ rng.normal(size=6) + rng.gumbel(size=len(features))
    right = np.array([worth[a : a + c].argmax() for a, c in zip(first, counts, strict=True)])
    return torch.from_numpy(features).float(), torch.from_numpy(right), counts


def distributions(n: int, classes: int, *, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(classes), n)).float()


def probabilities(fitted: Any, design: Design) -> np.ndarray:
    return fitted.logits(design).softmax(1).numpy()


@pytest.mark.parametrize("strength", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("classes", [3, 30])
def test_it_is_scikit_learns_regression_of_centred_features_of_mean_length_1(strength: float, classes: int) -> None:
    features, labels = rows(300, 20, classes)
    ours = fit_logistic_regression(Design.of_labels(features, labels, classes), strength=strength)
    theirs = linear_model.LogisticRegression(C=strength, tol=1e-8, max_iter=5000).fit(rounded(features), labels)
    expected = theirs.predict_proba(rounded(features))
    np.testing.assert_allclose(probabilities(ours, Design.of_labels(features, labels, classes)), expected, atol=2e-3)
    assert ours.strength == strength


def test_of_two_classes_each_has_half_of_the_weights() -> None:
    features, labels = rows(200, 10, 2)
    ours = fit_logistic_regression(Design.of_labels(features, labels, 2), strength=1.0)
    # ½ (‖w/2‖² + ‖−w/2‖²) is half of what one vector w costs.
    theirs = linear_model.LogisticRegression(C=2.0, tol=1e-8).fit(rounded(features), labels)
    expected = theirs.predict_proba(rounded(features))
    np.testing.assert_allclose(probabilities(ours, Design.of_labels(features, labels, 2)), expected, atol=3e-3)
    torch.testing.assert_close(ours.weight[0], -ours.weight[1], atol=1e-4, rtol=1e-3)


def gradient(fitted: Any, design: Design) -> torch.Tensor:
    """Return the gradient of Σ cross-entropy + ‖weights‖² / (2C) by autograd, in float64, by what rows count."""
    x = design.features.double()
    counted = (
        design.mass > 0
        if design.counts is None
        else (design.mass > 0).repeat_interleave(torch.from_numpy(design.counts))
    )
    mean = x[counted].mean(0) if design.biased else torch.zeros(x.shape[1])
    length = float((x[counted] - mean).square().sum(1).mean().sqrt())
    x = (x - mean) / length
    weight = (fitted.weight.double() * length).requires_grad_()
    bias = (fitted.bias.double() + fitted.weight.double() @ mean.double()).requires_grad_()
    scores = x @ weight.T + bias
    if design.counts is not None:
        padded = torch.full((len(design), design.outputs), -torch.inf, dtype=torch.float64)
        present = torch.arange(design.outputs) < torch.from_numpy(design.counts)[:, None]
        scores = padded.masked_scatter(present, scores[:, 0])
    logs = torch.log_softmax(scores, 1).clamp_min(-1e30)
    wanted = design.targets.double()
    if wanted.dim() == 1:
        wanted = torch.nn.functional.one_hot(design.targets, design.outputs) * design.mass[:, None].double()
    loss = -(wanted * logs).sum() + weight.square().sum() / (2 * fitted.strength)
    found = torch.autograd.grad(loss, [weight, bias] if design.biased else [weight])
    return torch.cat([each.flatten() for each in found]) / float(design.mass.sum())


KINDS = ["labels", "soft", "weighted", "without bias", "choices"]


def design_of(kind: str, *, n: int = 240) -> Design:
    features, labels = rows(n, 12, 4)
    if kind == "soft":
        return Design.of_distributions(features, distributions(n, 4))
    if kind == "weighted":
        return Design.of_labels(features, labels, 4, class_weights=torch.tensor([0.1, 2.0, 1.0, 0.5]))
    if kind == "choices":
        features, right, counts = conditional(n)
        return Design.of_labels(features, right, 4, counts=counts)
    return Design.of_labels(features, labels, 4, intercept=kind != "without bias")


@pytest.mark.parametrize("strength", [0.1, 10.0, 1000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_solution_the_gradient_is_zero(kind: str, strength: float) -> None:
    design = design_of(kind)
    fitted = fit_logistic_regression(design, strength=strength)
    nothing = replace(fitted, weight=torch.zeros_like(fitted.weight), bias=torch.zeros_like(fitted.bias))
    assert float(gradient(fitted, design).norm()) < 2e-3 * float(gradient(nothing, design).norm())


@pytest.mark.parametrize("classes", [2, 5])
def test_distributions_that_are_sure_say_what_labels_say(classes: int) -> None:
    features, labels = rows(150, 8, classes)
    weights = torch.rand(classes, generator=torch.Generator().manual_seed(0)) + 0.2
    sure = torch.nn.functional.one_hot(labels, classes).float()
    one = fit_logistic_regression(Design.of_labels(features, labels, classes, class_weights=weights))
    other = fit_logistic_regression(Design.of_distributions(features, sure, class_weights=weights))
    torch.testing.assert_close(one.weight, other.weight, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(one.bias, other.bias, atol=1e-4, rtol=1e-3)


def test_a_class_that_counts_twice_is_one_whose_rows_are_there_twice() -> None:
    features, labels = rows(120, 8, 3)
    again = torch.cat([torch.arange(120), torch.nonzero(labels == 1)[:, 0]])
    twice = Design.of_labels(features, labels, 3, class_weights=torch.tensor([1.0, 2.0, 1.0]))
    there = Design.of_labels(features[again], labels[again], 3)
    # The features are centred by rows, whatever these count: with hardly a penalty that makes no difference.
    fits = [fit_logistic_regression(design, strength=1000.0) for design in (twice, there)]
    np.testing.assert_allclose(*(probabilities(fitted, twice) for fitted in fits), atol=5e-3)


@pytest.mark.parametrize("kind", ["labels", "soft", "choices"])
def test_rows_that_do_not_count_change_nothing(kind: str) -> None:
    design = design_of(kind)
    counts = np.full(5, 3) if kind == "choices" else None
    odd = torch.full((15 if kind == "choices" else 5, design.features.shape[1]), 50.0)
    features = torch.cat([design.features, odd])
    if kind == "soft":
        more = Design.of_distributions(features, torch.cat([design.targets, torch.zeros(5, 4)]))
    else:
        labels = torch.cat([design.targets, torch.full((5,), -1)])
        all_counts = None if counts is None or design.counts is None else np.concatenate([design.counts, counts])
        more = Design.of_labels(features, labels, 4, counts=all_counts)
    without, beside = fit_logistic_regression(design), fit_logistic_regression(more)
    torch.testing.assert_close(beside.weight, without.weight, atol=1e-4, rtol=1e-3)
    assert beside.cross_entropy(more) == pytest.approx(without.cross_entropy(design), rel=1e-4)


@pytest.mark.parametrize("kind", ["labels", "soft", "choices"])
def test_where_no_row_counts_all_labels_are_alike(kind: str) -> None:
    design = design_of(kind)
    none = Design(design.features, design.targets, torch.zeros(len(design)), 4, design.counts)
    if kind == "soft":
        none = Design.of_distributions(design.features, torch.zeros(len(design), 4))
    fitted = fit_logistic_regression(none)
    assert float(fitted.weight.abs().max()) == 0
    assert torch.equal(fitted.bias, fitted.bias[:1].expand_as(fitted.bias))


@pytest.mark.parametrize("strength", [1.0, 1000.0])
def test_it_converges_where_one_direction_is_a_thousand_times_longer(strength: float) -> None:
    features, labels = rows(400, 20, 4)
    features[:, 3] *= 1000
    features[:, 7] *= 30
    design = Design.of_labels(features, labels, 4)
    ours = fit_logistic_regression(design, strength=strength)
    theirs = linear_model.LogisticRegression(C=strength, tol=1e-9, max_iter=10_000).fit(rounded(features), labels)
    np.testing.assert_allclose(probabilities(ours, design), theirs.predict_proba(rounded(features)), atol=3e-3)


def test_more_features_than_rows_are_no_harm() -> None:
    features, labels = rows(12, 100, 3)
    design = Design.of_labels(features, labels, 3)
    theirs = linear_model.LogisticRegression(C=10.0, tol=1e-8, max_iter=5000).fit(rounded(features), labels)
    ours = fit_logistic_regression(design, strength=10.0)
    np.testing.assert_allclose(probabilities(ours, design), theirs.predict_proba(rounded(features)), atol=2e-3)


def test_features_that_are_all_the_same_leave_the_shares_of_the_labels() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    design = Design.of_labels(torch.ones(4, 3), labels, 3)
    said = probabilities(fit_logistic_regression(design), design)
    np.testing.assert_allclose(said[:, :2], [[0.75, 0.25]] * 4, atol=0.1)
    assert np.isfinite(said).all()


def test_without_an_intercept_it_is_that_of_features_as_they_are() -> None:
    features, labels = rows(200, 10, 3)
    design = Design.of_labels(features, labels, 3, intercept=False)
    length = float(features.square().sum(1).mean().sqrt())
    theirs = linear_model.LogisticRegression(C=10.0, fit_intercept=False, tol=1e-9, max_iter=5000)
    theirs.fit(features.double().numpy() / length, labels)
    ours = fit_logistic_regression(design, strength=10.0)
    assert torch.equal(ours.bias, torch.zeros(3))
    expected = theirs.predict_proba(features.double().numpy() / length)
    np.testing.assert_allclose(probabilities(ours, design), expected, atol=2e-3)


@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_the_conditional_logit_is_that_of_an_independent_solver(strength: float) -> None:
    features, right, counts = conditional(90)
    design = Design.of_labels(features, right, int(counts.max()), counts=counts)
    length = float(features.double().square().sum(1).mean().sqrt())
    x = np.split(features.double().numpy() / length, counts.cumsum()[:-1])

    def loss(weight: np.ndarray) -> float:
        told = sum(log_softmax(own @ weight)[k] for own, k in zip(x, right.tolist(), strict=True))
        return float(-told + weight @ weight / (2 * strength))

    expected = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-7}).x
    ours = fit_logistic_regression(design, strength=strength)
    assert ours.weight.shape == (1, 6)
    np.testing.assert_allclose(ours.weight[0].numpy() * length, expected, rtol=5e-3, atol=1e-3)


def test_choices_that_a_row_does_not_have_are_impossible() -> None:
    features, right, counts = conditional(7)
    design = Design.of_labels(features, right, 4, counts=counts)
    logits = fit_logistic_regression(design).logits(design)
    assert logits.shape == (7, 4)
    assert torch.equal(torch.isneginf(logits), torch.arange(4) >= torch.from_numpy(counts)[:, None])


@pytest.mark.parametrize("kind", KINDS)
def test_some_rows_at_a_time_are_as_good_as_all_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    design = design_of(kind)
    whole = fit_logistic_regression(design)
    loss = whole.cross_entropy(design)
    monkeypatch.setattr(logistic_regression, "_CHUNK_ON_CPU", 4 * 17)  # 240 rows are no multiple of 17
    pieces = fit_logistic_regression(design)
    torch.testing.assert_close(pieces.weight, whole.weight, atol=1e-3, rtol=1e-3)
    assert pieces.cross_entropy(design) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_another_start_leads_to_the_same_place(kind: str) -> None:
    design = design_of(kind)
    cold = fit_logistic_regression(design, strength=10.0)
    warm = fit_logistic_regression(design, strength=10.0, start=fit_logistic_regression(design, strength=0.1))
    torch.testing.assert_close(warm.weight, cold.weight, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(warm.bias, cold.bias, atol=5e-3, rtol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_decided_by_the_rows(kind: str) -> None:
    first, again = (fit_logistic_regression(design_of(kind)) for _ in range(2))
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.bias, again.bias)


@pytest.fixture
def largest() -> Iterator[Largest]:
    with Largest() as mode:
        yield mode


def test_memory_grows_with_neither_rows_times_classes_nor_parts(
    largest: Largest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logistic_regression, "_CHUNK_ON_CPU", 2**14)
    features, labels = rows(600, 6, 300)
    design = Design.of_labels(features, labels, 300)
    folds = np.where(np.arange(600) < 30, 0, -1)
    largest.size = 0
    cross_fitted(design, folds)
    best_strength(design, design.take(np.arange(50)))
    assert largest.size <= 2**14  # all logits are 11 times as many


def test_ten_thousand_classes_are_learnt() -> None:
    features, labels = rows(200, 16, 100, apart=3.0)
    design = Design.of_labels(features, 99 * labels, 10_000)
    fitted = fit_logistic_regression(design, strength=1000.0)
    assert float((fitted.logits(design).argmax(1) == design.targets).float().mean()) > 0.95


def test_work_without_end_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    design = design_of("labels")
    exact = fit_logistic_regression(design, strength=1000.0)
    monkeypatch.setattr(logistic_regression, "_WORK", 0)
    short = fit_logistic_regression(design, strength=1000.0)
    assert not torch.allclose(short.weight, exact.weight, rtol=1e-3)
    assert short.cross_entropy(design) < 1.2 * exact.cross_entropy(design)


# ---- how strong


def test_the_strength_is_the_one_that_says_most_of_rows_held_out() -> None:
    features, labels = rows(300, 20, 3, apart=0.3)
    train = Design.of_labels(features[:60], labels[:60], 3)
    held = Design.of_labels(features[60:], labels[60:], 3)
    best, loss = best_strength(train, held)
    all_of_them = {s: fit_logistic_regression(train, strength=s).cross_entropy(held) for s in STRENGTHS}
    assert best.strength == min(all_of_them, key=lambda s: all_of_them[s])
    assert 0.1 < best.strength < 1000  # or the search need not have been one
    assert loss == pytest.approx(all_of_them[best.strength], rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_cross_entropy_is_the_mean_over_what_counts(kind: str) -> None:
    design = design_of(kind)
    fitted = fit_logistic_regression(design)
    logs = log_softmax(fitted.logits(design).double().numpy(), axis=1)
    logs[np.isneginf(logs)] = 0
    if design.targets.dim() == 2:
        expected = -(design.targets.numpy() * logs).sum() / design.targets.sum()
    else:
        mass = design.mass.numpy()
        expected = -(mass * logs[np.arange(len(design)), design.targets]).sum() / mass.sum()
    assert fitted.cross_entropy(design) == pytest.approx(float(expected), rel=1e-4)


# ---- cross-fitting


@pytest.mark.parametrize("kind", KINDS)
def test_of_each_row_is_said_what_a_regression_says_that_was_fitted_to_the_other_parts(kind: str) -> None:
    design = design_of(kind, n=90)
    folds = np.arange(90) % 3
    strength, said = cross_fitted(design, folds)
    assert said.shape == (90, 4)
    for part in range(3):
        others = fit_logistic_regression(design.take(np.flatnonzero(folds != part)), strength=strength)
        out = np.flatnonzero(folds == part)
        expected = others.logits(design.take(out)).softmax(1)
        np.testing.assert_allclose(said[torch.from_numpy(out)].softmax(1), expected, atol=1e-2)


def test_a_row_is_never_judged_by_what_it_taught() -> None:
    # Each row has a feature of its own, and a label that nothing else tells: whoever saw it knows it.
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 2, 60))
    design = Design.of_labels(torch.eye(60), labels, 2)
    knows = fit_logistic_regression(design, strength=1000.0).logits(design)
    assert float((knows.argmax(1) == labels).float().mean()) == 1
    _, said = cross_fitted(design, np.arange(60) % 5, strengths=(1000.0,))
    assert float((said.argmax(1) == labels).float().mean()) < 0.75
    assert float(said.softmax(1).max(1).values.std()) < 0.1  # of all of them they say the same


def test_rows_of_no_part_are_always_learnt_from_and_nothing_is_said_of_them() -> None:
    features, labels = rows(60, 5, 3, apart=3.0)
    folds = np.where(np.arange(60) < 40, -1, np.arange(60) % 2)
    folds[labels.numpy() == 2] = -1  # its rows are learnt from alone
    strength, said = cross_fitted(Design.of_labels(features, labels, 3), folds)
    judged = np.flatnonzero(folds >= 0)
    assert said.shape == (len(judged), 3)
    for part in (0, 1):
        learnt = np.flatnonzero(folds != part)
        fitted = fit_logistic_regression(Design.of_labels(features[learnt], labels[learnt], 3), strength=strength)
        out = judged[folds[judged] == part]
        expected = fitted.logits(Design.of_labels(features[out], labels[out], 3)).softmax(1)
        np.testing.assert_allclose(said.softmax(1)[torch.from_numpy(folds[judged] == part)], expected, atol=1e-2)


def test_a_part_without_rows_is_passed_over() -> None:
    design = design_of("choices", n=30)
    folds = np.where(np.arange(30) % 2, 0, 2)
    strength, said = cross_fitted(design, folds)
    assert strength in STRENGTHS
    assert torch.isfinite(said[:, :2]).all()


def test_parts_that_hold_all_rows_that_count_leave_nothing_to_learn_and_no_harm() -> None:
    features, labels = rows(20, 4, 2)
    labels[10:] = -1
    _, said = cross_fitted(Design.of_labels(features, labels, 2), np.repeat([0, 1], 10))
    assert torch.isfinite(said).all()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(2, 6), st.integers(0, 3))
def test_labels_are_spread_evenly_over_the_parts(found: list[int], parts: int, seed: int) -> None:
    labels = np.array(found)
    folds = stratified_folds(labels, parts, seed=seed)
    assert np.array_equal(folds, stratified_folds(labels, parts, seed=seed))
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        inside = folds[labels == label]
        assert (inside == -1).all() if count == 1 else (inside >= 0).all()
        if count > 1:
            sizes = np.bincount(inside, minlength=parts)
            assert sizes.max() - sizes.min() <= 1
    judged = folds[folds >= 0]
    if len(judged):
        sizes = np.bincount(judged, minlength=parts)
        assert sizes.max() - sizes.min() <= 1


@settings(max_examples=30)
@given(st.data())
def test_rows_that_are_taken_bring_their_choices(data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)))
    taken = np.array(data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=10)), dtype=np.int64)
    features = torch.arange(counts.sum())[:, None].float()
    design = Design.of_labels(features, torch.zeros(len(counts), dtype=torch.int64), 4, counts=counts)
    some = design.take(taken)
    own = np.split(np.arange(counts.sum()), counts.cumsum()[:-1])
    expected = [float(x) for row in taken for x in own[row]]
    assert some.features[:, 0].tolist() == expected
    assert some.counts is not None
    assert some.counts.tolist() == counts[taken].tolist()
