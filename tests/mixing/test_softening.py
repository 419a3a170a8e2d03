"""Targets and weights from the run's own past, against closed forms."""

from typing import Any

import numpy as np
import pytest
import torch

from calmix.dynamics import Dynamics, Recorder
from calmix.errors import InputError
from calmix.mixing import Recipe
from calmix.mixing.remembering import LOOKS, OWN
from calmix.mixing.softening import distrusting, doubting, guided_also, self_taught, softened_by_doubt
from calmix.mixing.targets import cross_entropy
from calmix.mixing.terms import clean, mixed


def recorded(logits: list[list[list[float]]], labels: list[int]) -> Dynamics:
    """Return the dynamics of some epochs of logits."""
    recorder = Recorder(len(labels))
    for epoch in logits:
        recorder.update(torch.tensor(epoch), torch.tensor(labels), torch.arange(len(labels)))
        recorder.end_epoch()
    return recorder.dynamics()


def test_without_a_past_targets_are_the_labels(make_step: Any) -> None:
    step, plain = make_step(), make_step()
    torch.testing.assert_close(self_taught(Recipe(clean())).loss(step), clean()(plain))
    assert self_taught(Recipe(clean())).remembers


@pytest.mark.parametrize(("ramp", "weights"), [(1.0, [0.0, 0.6, 0.6, 0.6, 0.6]), (2.0, [0.0, 0.3, 0.6, 0.6, 0.3])])
def test_own_predictions_are_a_share_of_the_target(make_step: Any, ramp: float, weights: list[float]) -> None:
    step, own = make_step(), torch.softmax(torch.randn(5, 4), -1)[:, :3]
    gold = step.targets.clone()
    step.signals = {OWN: torch.nn.functional.pad(own, (0, 1)), LOOKS: torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0])}
    found = self_taught(Recipe(clean()), share=0.6, ramp=ramp).loss(step)
    w = torch.tensor(weights)[:, None]
    torch.testing.assert_close(found, cross_entropy(step.logits, (1 - w) * gold + w * own))


def test_own_predictions_are_mixed_as_labels_are(make_step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, own = make_step(), torch.softmax(torch.randn(5, 3), -1)
    monkeypatch.setattr(type(step), "beta", lambda step, alpha, per_sample=False: torch.full((5,), 0.7))
    step.signals = {OWN: own, LOOKS: torch.ones(5)}
    partner = torch.tensor([1, 2, 3, 4, 0])
    found = self_taught(Recipe(mixed("head", alpha=1.0, pairing=lambda _: partner)), share=1.0).loss(step)
    logits = 0.7 * step.logits + 0.3 * step.logits[partner]
    torch.testing.assert_close(found, cross_entropy(logits, 0.7 * own + 0.3 * own[partner]))


def test_doubt_is_the_rank_of_confidence_and_a_half_for_the_unseen() -> None:
    dynamics = recorded([[[3.0, 0.0], [0.0, 3.0], [1.0, 0.0]]], [0, 0, 0])
    assert doubting(dynamics).tolist() == [0.0, 1.0, 0.5]
    recorder = Recorder(3)
    recorder.update(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]), torch.tensor([2, 0]))
    recorder.end_epoch()
    assert doubting(recorder.dynamics()).tolist() == [1.0, 0.5, 0.0]


def test_the_surest_keep_their_label_and_the_mean_smoothing_is_as_asked(make_step: Any) -> None:
    recipe, step = softened_by_doubt(Recipe(clean()), smoothing=0.1), make_step()
    gold = step.targets.clone()
    told = recipe.guide(recorded([torch.randn(5, 3).tolist()], gold.argmax(1).tolist()))  # type: ignore[misc]
    step.signals = {name: torch.from_numpy(values) for name, values in told.items()}
    recipe.loss(step)
    moved = 1 - step.targets.gather(1, gold.argmax(1)[:, None])[:, 0]
    assert moved.min() == 0
    assert moved.max().item() == pytest.approx(0.2)
    assert moved.mean().item() == pytest.approx(0.1)
    torch.testing.assert_close(step.targets.sum(1), torch.ones(5))


def test_suspected_labels_weigh_less(make_step: Any) -> None:
    recipe = distrusting(Recipe(clean()), weight=0.25)
    sure_of_other = [[0.0, 6.0, 0.0]]
    dynamics = recorded([sure_of_other + [[6.0, 0.0, 0.0]] * 4] * 2, [0] * 5)
    told = recipe.guide(dynamics)  # type: ignore[misc]
    assert told["trust"].tolist() == [0.25, 1, 1, 1, 1]
    step = make_step()
    plain = clean()(step)
    torch.testing.assert_close(distrusting(Recipe(clean())).loss(step), plain)
    step.signals = {"trust": torch.from_numpy(told["trust"])}
    torch.testing.assert_close(recipe.loss(step), plain * torch.tensor([0.25, 1, 1, 1, 1]))


def test_guides_add_up() -> None:
    first = guided_also(Recipe(clean()), lambda d: {"a": np.zeros(len(d))})
    both = guided_also(first, lambda d: {"b": np.ones(len(d))})
    assert both.online
    assert set(both.guide(recorded([[[1.0, 0.0]]], [0]))) == {"a", "b"}  # type: ignore[misc]


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="share must be between 0 and 1"):
        self_taught(Recipe(clean()), share=1.5)
    with pytest.raises(InputError, match="ramp must be"):
        self_taught(Recipe(clean()), ramp=0)
    with pytest.raises(InputError, match="smoothing must be between"):
        softened_by_doubt(Recipe(clean()), smoothing=0.6)
    with pytest.raises(InputError, match="weight must be"):
        distrusting(Recipe(clean()), weight=2)
