"""Methods guided by training dynamics."""

from typing import Any

import numpy as np
import pytest
import torch

from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.mixing.guided import aum_saliency, informed_mixup, tdmixup
from calmix.mixing.pairing import by_saliency
from calmix.mixing.targets import cross_entropy

ROWS = 8


@pytest.fixture
def guided_step(make_step: Any) -> Any:
    """Return a step of eight rows whose first four are of side 0 and whose others are of side 1."""

    def make(side: list[int] | None = None, **options: Any) -> Any:
        step = make_step(rows=ROWS, **options)
        step.rows = torch.arange(ROWS)
        step.signals = {"side": torch.tensor(side or [0] * 4 + [1] * 4, dtype=torch.int8)}
        return step

    return make


def plain(step: Any) -> torch.Tensor:
    return cross_entropy(step.logits, step.targets)


def dynamics(aum: list[float]) -> Dynamics:
    """Return dynamics of two epochs whose margins have these means."""
    margin = np.array(aum)
    return Dynamics.from_logits(np.stack([np.stack([margin, 0 * margin], 1)] * 2), np.zeros(len(aum), dtype=int))


def test_aum_saliency_without_mixing_is_the_sum_of_its_weights_times_cross_entropy(guided_step: Any) -> None:
    step = guided_step()
    torch.testing.assert_close(aum_saliency(alpha=0).loss(step), plain(step) * 1.0)
    torch.testing.assert_close(aum_saliency(alpha=0, similar=0, clean=0.9).loss(step), plain(step) * 1.0)
    torch.testing.assert_close(aum_saliency(alpha=0, dissimilar=0.3).loss(step), plain(step) * 1.2)


def test_aum_saliency_mixes_logits_and_labels_with_its_two_partners(guided_step: Any) -> None:
    step = guided_step()
    found = aum_saliency(alpha=0.5).loss(step)
    near, far = by_saliency(step, step.signal("side").long())
    step.generator.manual_seed(step.generator.initial_seed())
    expected = 0.8 * plain(step)
    for partner, lam in zip((near, far), step.betas(2, 0.5)[..., None], strict=True):
        logits = lam * step.logits + (1 - lam) * step.logits[partner]
        expected = expected + 0.1 * cross_entropy(logits, lam * step.targets + (1 - lam) * step.targets[partner])
    torch.testing.assert_close(found, expected)


def test_partners_by_saliency_are_the_extremes_of_the_other_side_by_brute_force(guided_step: Any) -> None:
    step = guided_step(side=[0, 1, 0, 1, 1, 0, -1, 0])
    near, far = by_saliency(step, step.signal("side").long(), "logits")
    gap = (step.logits.double().softmax(1) - step.targets).abs().detach()
    side = step.signal("side").tolist()
    for i in range(ROWS):
        others = [j for j in range(ROWS) if {side[i], side[j]} == {0, 1}]
        if not others:
            assert near[i] == far[i] == i
            continue
        alike = [float(torch.cosine_similarity(gap[i], gap[j], dim=0)) for j in others]
        assert near[i] == others[int(np.argmax(alike))]
        assert far[i] == others[int(np.argmin(alike))]


def test_two_choices_are_compared_by_the_gradient_of_the_head_not_by_parallel_saliency(
    guided_step: Any,
) -> None:
    step = guided_step(kind="choices", of=2)
    near, _ = by_saliency(step, step.signal("side").long())
    head = step.model.get_submodule(step.anatomy.head)
    gradients = []
    for loss in plain(step):
        gradients.append(torch.autograd.grad(loss, head.weight, retain_graph=True)[0].flatten())
    for i in range(4):
        alike = [float(torch.cosine_similarity(gradients[i], gradients[j], dim=0)) for j in range(4, 8)]
        assert near[i] == 4 + int(np.argmax(alike))


def test_a_set_search_mixes_with_what_is_remembered_of_the_partner(guided_step: Any) -> None:
    step = guided_step()
    remembered, targets = torch.randn(ROWS, 3), torch.eye(3)[torch.arange(ROWS) % 3]
    near, far = torch.tensor([4, 5, 6, 7, 0, 1, 2, 7]), torch.tensor([7, 6, 5, 4, 3, 2, 1, 7])
    step.signals |= {"similar": near, "dissimilar": far}
    step.signals |= {"remembered_logits": remembered, "remembered_targets": targets}
    found = aum_saliency(alpha=0.5, search="set", smoothing=0.3).loss(step)
    step.generator.manual_seed(step.generator.initial_seed())
    expected = 0.8 * plain(step)
    own, theirs = (t * 0.7 + (1 - t) * 0.15 for t in (step.targets, targets))
    for partner in (near, far):
        lam = step.beta(0.5)[:, None].clone()
        lam[7] = 1.0  # its own partner: nothing to mix with
        logits = lam * step.logits + (1 - lam) * remembered[partner]
        expected = expected + 0.1 * cross_entropy(logits, lam * own + (1 - lam) * theirs[partner])
    torch.testing.assert_close(found, expected)


def test_before_anything_is_remembered_a_set_search_looks_in_the_batch(guided_step: Any) -> None:
    torch.testing.assert_close(aum_saliency(search="set").loss(guided_step()), aum_saliency().loss(guided_step()))


@pytest.mark.parametrize("at", ["inner", "input"])
def test_a_set_search_goes_with_mixing_at_the_head_alone(at: Any) -> None:
    with pytest.raises(InputError, match="at=head alone"):
        aum_saliency(search="set", at=at)


def test_aum_saliency_smooths_mixed_targets_only(guided_step: Any) -> None:
    step = guided_step()
    found = aum_saliency(alpha=0, smoothing=0.3).loss(step)
    smoothed = step.targets * 0.7 + (1 - step.targets) * 0.15
    torch.testing.assert_close(found, 0.8 * plain(step) + 0.2 * cross_entropy(step.logits, smoothed))


def test_aum_saliency_as_released_has_the_weights_of_the_authors_code(guided_step: Any) -> None:
    step = guided_step()
    found = aum_saliency(alpha=0, as_released=True).loss(step)
    torch.testing.assert_close(found, (2.8 + 2 * 0.05 * ROWS / 3) * plain(step))


@pytest.mark.parametrize("recipe", [aum_saliency(), tdmixup(), informed_mixup()])
def test_without_dynamics_yet_the_loss_is_plain_and_all_samples_are_trained_on(recipe: Any, make_step: Any) -> None:
    step = make_step(rows=ROWS)
    torch.testing.assert_close(recipe.loss(step), plain(step))


def test_without_aum_halves_are_drawn_and_no_dynamics_are_asked_for(make_step: Any) -> None:
    recipe = aum_saliency(aum=False)
    assert recipe.guide is None
    step = make_step(rows=ROWS)
    assert not torch.equal(recipe.loss(step), plain(step))


def test_the_guide_of_aum_saliency_cuts_at_the_median_and_the_median_goes_high() -> None:
    guide = aum_saliency().guide
    assert guide is not None
    assert guide(dynamics([3.0, -1.0, 2.0, 5.0, 0.0]))["side"].tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("recipe", [tdmixup, informed_mixup])
def test_without_mixing_paired_rows_count_once_more(recipe: Any, guided_step: Any) -> None:
    step = guided_step(side=[0, 1, -1, 0, 1, -1, -1, 0])
    found = recipe(alpha=0).loss(step)
    paired = torch.tensor([1, 1, 0, 1, 1, 0, 0, 1.0])
    # The mixes' mean over the five rows that have a partner, spread over the batch.
    torch.testing.assert_close(found, plain(step) * (1 + paired * ROWS / 5))


def test_rows_without_a_partner_in_the_batch_are_trained_on_plainly(guided_step: Any) -> None:
    step = guided_step(side=[0] * 8)
    torch.testing.assert_close(tdmixup().loss(step), plain(step))


def test_tdmixup_as_released_weighs_mixes_by_a_hundredth(guided_step: Any) -> None:
    step = guided_step()
    torch.testing.assert_close(tdmixup(alpha=0, as_released=True).loss(step), plain(step) * 1.01)


@pytest.mark.parametrize("recipe", [tdmixup, informed_mixup])
def test_the_guide_gives_easy_and_ambiguous_thirds(recipe: Any) -> None:
    rng = np.random.default_rng(0)
    recorded = Dynamics.from_logits(rng.normal(size=(4, 30, 3)), rng.integers(0, 3, 30))
    side = recipe().guide(recorded)["side"]
    assert (side == 0).sum() == (side == 1).sum() == 10
    assert recorded.variability[side == 1].min() >= recorded.variability[side != 1].max()


@pytest.mark.parametrize("recipe", [tdmixup, informed_mixup])
def test_a_region_without_anyone_is_refused(recipe: Any) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"a share of 0.01 of 30 samples is nobody"):
        recipe(fraction=0.01).guide(Dynamics.from_logits(rng.normal(size=(4, 30, 3)), rng.integers(0, 3, 30)))


@pytest.mark.parametrize(
    "options", [{"fraction": 0.7}, {"fraction": 0.0}, {"alpha": -1.0}, {"mixed": -1.0}, {"smoothing": 2.0}]
)
def test_numbers_that_cannot_be_meant_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        tdmixup(**options)


def test_mixing_at_the_input_takes_a_forward_of_its_own(guided_step: Any) -> None:
    step = guided_step()
    assert aum_saliency(at="input").loss(step).shape == (ROWS,)
    assert not torch.allclose(aum_saliency(at="input").loss(guided_step()), aum_saliency().loss(guided_step()))
