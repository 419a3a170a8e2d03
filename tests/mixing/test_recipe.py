"""What a training method is made of."""

import dataclasses
from typing import Any

import pytest
import torch

from calmix.mixing.recipe import Recipe
from calmix.mixing.sampling import uniform


def test_a_loss_alone_is_a_recipe_of_uniform_batches_with_one_kind_of_step_and_no_guide(make_step: Any) -> None:
    recipe = Recipe(lambda step: step.logits.sum(-1))
    assert recipe.batches is uniform
    assert recipe.variants(make_step().model) == 1
    assert recipe.prepare is None
    assert recipe.guide is None
    assert recipe.loss(make_step(rows=4)).shape == (4,)


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe(lambda step: torch.zeros(len(step))).guide = None  # type: ignore[misc]
