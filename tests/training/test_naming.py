"""What stands for a recipe in a run's identity."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmix.recipes import Recipe, Step, clean, erm, input_mixup, label_smoothing, manifold_mixup
from calmix.training.naming import recipe_name


def test_a_named_recipe_is_its_name() -> None:
    assert recipe_name("input-mixup") == "input-mixup"
    assert recipe_name("package.module:function") == "package.module.function"


def test_a_file_counts_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    names = []
    for content in ("a = 1", "a = 2", "a = 1"):
        file.write_text(content)
        names.append(recipe_name(f"{file}:method"))
    assert names[0] == names[2] != names[1]
    assert names[0].startswith("mine.method-")


def test_an_object_counts_by_its_numbers() -> None:
    names = [recipe_name(input_mixup(alpha=alpha)) for alpha in (0.4, 0.2, 0.4)]
    assert names[0] == names[2] != names[1]
    assert names[0].startswith("mixed-")
    assert len({recipe_name(r) for r in (erm(), label_smoothing(), input_mixup(), manifold_mixup())}) == 4


def scaled(step: Step, *, by: float = 1.0) -> torch.Tensor:
    return by * clean()(step)


def test_partials_and_tensors_and_models_count() -> None:
    assert recipe_name(Recipe(partial(scaled, by=2.0))) != recipe_name(Recipe(partial(scaled, by=3.0)))

    def with_thing(thing: Any) -> str:
        return recipe_name(Recipe(lambda step: clean()(step) * (thing is not None)))

    assert with_thing(torch.tensor([1.0, 2.0], dtype=torch.bfloat16)) != with_thing(torch.tensor([1.0, 3.0]))
    assert with_thing(np.arange(3)) == with_thing(np.arange(3)) != with_thing(np.arange(4))
    torch.manual_seed(0)
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert with_thing(one) == with_thing(one) != with_thing(other)
    assert with_thing({"a": {1, 2}}) == with_thing({"a": {2, 1}}) != with_thing({"a": {3}})
    assert with_thing(np) == with_thing(np) != with_thing(torch)


def test_a_function_that_refers_to_itself_has_a_name() -> None:
    def loss(step: Step) -> torch.Tensor:
        return loss(step)

    assert recipe_name(Recipe(loss)) == recipe_name(Recipe(loss))
