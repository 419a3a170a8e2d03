"""Learning from a teacher: its logits for each training sample are the signal `teacher`."""

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from calmix.mixing import terms
from calmix.mixing.checking import check_positive, check_range, check_word
from calmix.mixing.recipe import Recipe
from calmix.mixing.step import Step

__all__ = ["TEACHER", "Form", "distil", "divergence", "taught"]

TEACHER = "teacher"
"""The signal that holds the teacher's logits, [samples, classes]."""

Form = Literal["usual", "paper"]


def distil(*, alpha: float = 0.5, tau: float = 1.0, form: Form = "usual", smoothing: float = 0.0) -> Recipe:
    """Cross-entropy to the labels and divergence from a teacher's predictions: see `calmix distil`.

    Paper: Hinton et al. 2015; Hosseini & Caragea (who give neither α nor τ).

    Args:
        alpha: weight α of the labels; the teacher has 1 − α. Samples without a label learn from the teacher alone.
        tau: temperature τ of the softened predictions.
        form: usual: τ²·KL(teacher ‖ student), both softened. paper: KL(student ‖ teacher), the teacher softened.
        smoothing: label smoothing σ of the student's own labels.
    """
    return taught(Recipe(terms.clean(smoothing=smoothing), levels=()), alpha=alpha, tau=tau, form=form)


def taught(recipe: Recipe, *, alpha: float = 0.5, tau: float = 1.0, form: Form = "usual") -> Recipe:
    """Return a recipe with a teacher: α times its loss, plus 1 − α times the divergence from the teacher."""
    check_range("alpha", alpha, high=1)
    check_positive("tau", tau)
    check_word("form", form, get_args(Form))

    def loss(step: Step) -> Tensor:
        # Choices that no row of the batch has are left out.
        teacher = step.signal(TEACHER)[:, : step.targets.shape[-1]]
        hard, soft = recipe.loss(step), divergence(step.logits, teacher, tau=tau, form=form)
        # A sample without a label has no mass in its target.
        return torch.lerp(soft, hard, alpha * (step.targets.sum(-1) > 0.5))

    return replace(recipe, loss=loss, taught=True)


def divergence(student: Tensor, teacher: Tensor, *, tau: float = 1.0, form: Form = "usual") -> Tensor:
    """Return each row's Kullback–Leibler divergence between two sets of logits [rows, classes].

    `usual`: τ²·KL(teacher ‖ student), both softened by τ; τ² keeps the gradient's size as τ grows (Hinton et al.).
    `paper`: KL(student ‖ teacher), only the teacher softened (Hosseini & Caragea, equations 2 and 3 as written).
    """
    if tau != 1:  # steps are short enough on a GPU for divisions by 1 to be felt
        teacher, student = teacher / tau, student / tau if form == "usual" else student
    logs = teacher.log_softmax(-1), student.log_softmax(-1)
    of, to = logs if form == "usual" else logs[::-1]
    found = (of.exp() * (of - to)).sum(-1)
    return tau**2 * found if form == "usual" and tau != 1 else found
