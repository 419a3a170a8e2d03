"""Learning from a teacher: the formula, its edges, and what it leaves alone."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calmix.errors import InputError
from calmix.mixing.distilling import Form, distil, divergence, taught
from calmix.recipes import cls_mixup, cross_entropy, erm, informed_mixup, input_mixup

FORMS: tuple[Form, ...] = ("usual", "paper")


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _reference(student: NDArray[np.float64], teacher: NDArray[np.float64], tau: float, form: str) -> list[float]:
    """The divergence from its definition, in float64, one class at a time."""
    p, q = _softmax(teacher / tau), _softmax(student / tau if form == "usual" else student)
    if form == "paper":
        p, q = q, p
    rows = [sum(a * (math.log(a) - math.log(b)) for a, b in zip(*row, strict=True)) for row in zip(p, q, strict=True)]
    return [(tau**2 if form == "usual" else 1.0) * row for row in rows]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    shape = draw(st.tuples(st.integers(1, 4), st.integers(2, 6)))
    numbers = st.floats(-15, 15, width=32)
    both = [draw(st.lists(numbers, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])) for _ in range(2)]
    one, other = (np.array(values, dtype=np.float64).reshape(shape) for values in both)
    return one, other


@given(pairs(), st.floats(0.5, 8.0), st.sampled_from(FORMS))
def test_the_divergence_is_that_of_its_definition(
    logits: tuple[NDArray[np.float64], NDArray[np.float64]], tau: float, form: Form
) -> None:
    student, teacher = logits
    found = divergence(torch.from_numpy(student).float(), torch.from_numpy(teacher).float(), tau=tau, form=form)
    np.testing.assert_allclose(found.numpy(), _reference(student, teacher, tau, form), rtol=2e-5, atol=2e-5)


@given(pairs(), st.floats(0.5, 8.0), st.sampled_from(FORMS))
def test_the_divergence_is_never_negative_and_blind_to_a_shift(
    logits: tuple[NDArray[np.float64], NDArray[np.float64]], tau: float, form: Form
) -> None:
    student, teacher = (torch.from_numpy(each) for each in logits)
    found = divergence(student, teacher, tau=tau, form=form)
    assert (found >= -1e-9).all()
    torch.testing.assert_close(divergence(student + 3, teacher - 7, tau=tau, form=form), found, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_finite_differences(form: Form) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: divergence(z, teacher, tau=2.5, form=form), (student,))


def test_the_direction_of_each_form() -> None:
    sure, unsure = torch.tensor([[20.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    # A class the teacher gives mass to and the student none costs without bound in the usual form alone.
    assert divergence(sure, unsure, form="usual") > 9
    torch.testing.assert_close(divergence(sure, unsure, form="paper"), torch.tensor([math.log(2)]))
    assert divergence(unsure, sure, form="paper") > 9


def test_only_the_teacher_is_softened_in_the_papers_form() -> None:
    student, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])
    assert divergence(student, teacher, tau=2.0, form="paper") == 0
    assert divergence(student, teacher, tau=2.0, form="usual") > 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tau", [0.5, 3.0])
def test_alpha_one_is_plain_training_to_the_bit(make_step: Any, gradients_of: Any, tau: float, form: Form) -> None:
    plain, both = make_step(), make_step()
    losses = distil(alpha=1.0, tau=tau, form=form).loss(both)
    assert torch.equal(losses, erm().loss(plain))
    expected = gradients_of(plain, erm().loss(plain).mean())
    found = gradients_of(both, losses.mean())
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("tau", "form"), [(1.0, "usual"), (0.5, "usual"), (4.0, "usual"), (1.0, "paper")])
def test_a_teacher_equal_to_the_student_teaches_nothing(
    make_step: Any, gradients_of: Any, tau: float, form: Form
) -> None:
    step = make_step()
    step.signals = {"teacher": step.logits.detach()}
    losses = distil(alpha=0.0, tau=tau, form=form).loss(step)
    torch.testing.assert_close(losses, torch.zeros(len(step)), atol=1e-6, rtol=0)
    found = gradients_of(step, losses.mean())
    assert max(float(gradient.abs().max()) for gradient in found.values()) < 1e-6


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_loss_weighs_labels_and_teacher(make_step: Any, alpha: float) -> None:
    step = make_step()
    found = distil(alpha=alpha, tau=2.0).loss(step)
    hard = cross_entropy(step.logits, step.targets)
    soft = divergence(step.logits, step.signals["teacher"], tau=2.0)
    torch.testing.assert_close(found, alpha * hard + (1 - alpha) * soft)


def test_rows_without_a_label_learn_from_the_teacher_alone(make_step: Any) -> None:
    step = make_step()
    labelled = distil(alpha=0.7).loss(step)
    step.targets[[1, 3]] = 0
    found = distil(alpha=0.7).loss(step)
    soft = divergence(step.logits, step.signals["teacher"])
    torch.testing.assert_close(found[[1, 3]], soft[[1, 3]])
    assert torch.equal(found[[0, 2, 4]], labelled[[0, 2, 4]])


def test_votes_that_miss_one_by_a_rounding_are_labels(make_step: Any) -> None:
    step = make_step()
    step.targets = torch.full_like(step.targets, 1 / 3 - 1e-7)
    torch.testing.assert_close(distil(alpha=1.0).loss(step), erm().loss(step))


def test_choices_that_no_row_of_the_batch_has_are_left_out(make_step: Any) -> None:
    step = make_step(kind="choices", of=2)
    wider = torch.cat([step.signals["teacher"], torch.full((5, 2), -math.inf)], 1)
    expected = distil().loss(step)
    step.signals = {"teacher": wider}
    assert torch.equal(distil().loss(step), expected)
    assert expected.isfinite().all()


def test_a_teacher_that_is_asked_in_the_step_says_the_same(make_step: Any) -> None:
    step = make_step()
    expected, column = distil().loss(step), step.signals["teacher"]
    step.signals = {"teacher": lambda asked: column[asked.rows]}
    assert torch.equal(distil().loss(step), expected)


def test_any_recipe_can_have_a_teacher(make_step: Any) -> None:
    recipe = taught(cls_mixup(), alpha=0.25, tau=2.0)
    step = make_step()
    step.generator.manual_seed(4)
    found = recipe.loss(step)
    step.generator.manual_seed(4)
    expected = 0.25 * cls_mixup().loss(step) + 0.75 * divergence(step.logits, step.signals["teacher"], tau=2.0)
    torch.testing.assert_close(found, expected)


def test_what_else_a_recipe_has_stays_its_own() -> None:
    guided = informed_mixup(everyone=False)
    recipe = taught(guided)
    assert (recipe.guide, recipe.batches) == (guided.guide, guided.batches)
    assert recipe.taught
    assert not guided.taught
    assert taught(input_mixup()).variants is input_mixup().variants


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, "alpha must be between 0 and 1"),
        ({"alpha": -0.1}, "alpha must be between 0 and 1"),
        ({"tau": 0.0}, "tau must be a finite number above 0"),
        ({"tau": math.inf}, "tau must be a finite number above 0"),
        ({"form": "other"}, "form must be one of usual, paper"),
    ],
)
def test_values_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        distil(**options)
