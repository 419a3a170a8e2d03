"""What a loss is a sum of, against closed forms."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from calmix.errors import InputError
from calmix.mixing import Step
from calmix.mixing.targets import cross_entropy, mix, smooth
from calmix.mixing.terms import clean, mixed, negative_entropy, total

LEVELS = [0, 1, 2, "inner", "head"]


def _fixed(partner: list[int], weight: float) -> dict[str, Any]:
    return {"pairing": lambda _step: torch.tensor(partner), "alpha": weight}


@pytest.fixture
def fixed_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `alpha` the mixing weight itself."""
    monkeypatch.setattr(Step, "beta", lambda step, alpha, per_sample=False: torch.full((len(step),), float(alpha)))


def test_clean_is_cross_entropy(make_step: Any) -> None:
    step = make_step()
    labels = step.targets.argmax(1)
    torch.testing.assert_close(clean()(step), functional.cross_entropy(step.logits, labels, reduction="none"))


def test_clean_smooths_and_weighs(make_step: Any) -> None:
    step = make_step()
    step.class_weights = torch.tensor([0.5, 1.0, 3.0])
    log_p = torch.log_softmax(step.logits, -1)
    gold = step.targets.argmax(1)
    for i, losses in enumerate(clean(smoothing=0.2)(step)):
        share = [0.8 if k == gold[i] else 0.1 for k in range(3)]
        expected = -sum(step.class_weights[k] * share[k] * log_p[i, k] for k in range(3))
        torch.testing.assert_close(losses, expected)


def test_negative_entropy_is_the_sum_of_p_log_p(make_step: Any) -> None:
    step = make_step()
    entropy = torch.distributions.Categorical(logits=step.logits).entropy()
    torch.testing.assert_close(negative_entropy()(step), -entropy)


def test_negative_entropy_of_a_certain_prediction_is_0_and_has_a_gradient(make_step: Any) -> None:
    step = make_step()
    step.__dict__["logits"] = torch.tensor([[1e4, 0.0, 0.0]] * 5, requires_grad=True)
    value = negative_entropy()(step)
    assert (value == 0).all()
    value.sum().backward()
    assert step.logits.grad.isfinite().all()


def test_total_is_the_weighted_sum_row_by_row(make_step: Any) -> None:
    step = make_step()
    both = total((1.0, clean()), (-0.3, negative_entropy()))(step)
    assert both.shape == (5,)
    torch.testing.assert_close(both, clean()(step) - 0.3 * negative_entropy()(step))


@pytest.mark.usefixtures("fixed_lambda")
@pytest.mark.parametrize("level", LEVELS)
def test_mixed_at_lambda_1_is_clean(make_step: Any, level: Any) -> None:
    step = make_step()
    term = mixed(level, **_fixed([4, 3, 2, 1, 0], 1.0), padding="none", mask="own", smoothing=0.1)
    torch.testing.assert_close(term(step), clean(smoothing=0.1)(step))


@pytest.mark.usefixtures("fixed_lambda")
def test_mixed_is_cross_entropy_of_mixed_logits_to_mixed_smoothed_labels(make_step: Any) -> None:
    step = make_step()
    partner = [1, 2, 3, 4, 0]
    losses = mixed("head", **_fixed(partner, 0.3), smoothing=0.2)(step)
    for i, j in enumerate(partner):
        log_p = torch.log_softmax(0.3 * step.logits[i] + 0.7 * step.logits[j], -1)
        soft = [torch.where(step.targets[k] == 1, 0.8, 0.1) for k in (i, j)]
        torch.testing.assert_close(losses[i], -((0.3 * soft[0] + 0.7 * soft[1]) * log_p).sum())


@pytest.mark.usefixtures("fixed_lambda")
@pytest.mark.parametrize(("weight", "own"), [(0.3, False), (0.5, True), (0.8, True)])
def test_a_hard_label_is_that_of_the_nearer_sample(make_step: Any, weight: float, own: bool) -> None:
    step = make_step()
    partner = [1, 2, 3, 4, 0]
    losses = mixed("head", **_fixed(partner, weight), hard=True)(step)
    logits = mix(step.logits, torch.tensor(partner), torch.full((5,), weight))
    labels = step.targets if own else step.targets[partner]
    torch.testing.assert_close(losses, cross_entropy(logits, labels))


@pytest.mark.usefixtures("fixed_lambda")
@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
@pytest.mark.parametrize("level", LEVELS)
def test_permuting_the_batch_permutes_the_losses(make_step: Any, level: Any, kind: str) -> None:
    step = make_step(kind=kind)
    partner, order = torch.tensor([1, 2, 0, 4, 3]), torch.tensor([3, 0, 4, 2, 1])
    place = order.argsort()
    moved = replace(
        step, inputs={name: tensor[order] for name, tensor in step.inputs.items()}, targets=step.targets[order]
    )
    one = mixed(level, pairing=lambda _step: partner, alpha=0.6)(step)
    other = mixed(level, pairing=lambda _step: place[partner[order]], alpha=0.6)(moved)
    torch.testing.assert_close(other, one[order], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fixed_lambda")
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_knows_only_itself_and_its_partner(make_step: Any, level: Any) -> None:
    step = make_step()
    two = replace(step, inputs={k: v[:2] for k, v in step.inputs.items()}, targets=step.targets[:2])
    whole = mixed(level, **_fixed([1, 0, 3, 4, 2], 0.6))(step)
    alone = mixed(level, **_fixed([1, 0], 0.6))(two)
    torch.testing.assert_close(alone, whole[:2], rtol=1e-4, atol=1e-5)


def test_the_level_may_be_chosen_by_the_step(make_step: Any) -> None:
    step = make_step()
    step.variant = 2
    chosen = mixed(lambda s: s.variant, alpha=0)(step)
    step.generator.manual_seed(0)
    torch.testing.assert_close(chosen, mixed(2, alpha=0)(step))


def test_soft_targets_are_smoothed_and_mixed_like_labels(make_step: Any) -> None:
    step = make_step()
    step.targets = torch.softmax(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), -1)
    torch.testing.assert_close(
        mixed("head", alpha=0, smoothing=0.1)(step), cross_entropy(step.logits, smooth(step.targets, 0.1))
    )
    assert mixed(0, alpha=1.0)(step).isfinite().all()


def test_a_class_that_is_missing_from_the_batch_is_no_trouble(make_step: Any) -> None:
    step = make_step()
    step.targets = functional.one_hot(torch.zeros(5, dtype=torch.int64), 3).float()
    for term in (clean(smoothing=0.1), mixed(0, alpha=1.0), mixed("head", alpha=1.0, hard=True)):
        assert term(step).isfinite().all()


@pytest.mark.parametrize("make", [clean, lambda smoothing: mixed(0, alpha=1.0, smoothing=smoothing)])
@pytest.mark.parametrize("smoothing", [-0.1, 1.5, float("nan")])
def test_smoothing_is_a_share(make: Any, smoothing: float) -> None:
    with pytest.raises(InputError, match="smoothing must be between 0 and 1"):
        make(smoothing=smoothing)


@pytest.mark.parametrize("alpha", [-0.1, float("inf")])
def test_alpha_is_a_size(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha must be a finite number, 0 or above"):
        mixed(0, alpha=alpha)


@pytest.mark.parametrize(
    ("level", "options", "says"),
    [
        ("heads", {}, "^level must be a whole number, inner or head, not 'heads'$"),
        (0.5, {}, "^level must be a whole number, inner or head, not 0.5$"),
        (0, {"mask": "both"}, "^mask must be one of own, partner, union, not 'both'$"),
        (0, {"padding": "zero"}, "^padding must be one of sep, pad, .*, not 'zero'$"),
        (0, {"alpha": "0.4"}, "^alpha must be a finite number, 0 or above, not '0.4'$"),
    ],
)
def test_a_mix_that_no_step_could_make_is_refused_before_any(level: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        mixed(level, **{"alpha": 0.4, **options})
