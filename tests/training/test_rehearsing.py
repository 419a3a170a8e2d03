"""A rehearsal: what a run would take."""

from typing import Any

import pytest
import tiny
import torch
from accelerate import Accelerator

from calmix.errors import InputError
from calmix.mixing import choose, fill_tokens
from calmix.models import encode, load_for_training
from calmix.training.batches import training_set
from calmix.training.optimising import adamw
from calmix.training.rehearsing import rehearse
from calmix.training.stepping import Stepper


@pytest.fixture
def stepper(checkpoint: Any) -> Stepper:
    data = tiny.examples(40)
    model, tokenizer = load_for_training(str(checkpoint("bert")), label_names=data.label_names)
    pack = training_set(data, encode(data, tokenizer, max_length=32))
    optimizer = adamw(model.parameters(), lr=1.0, weight_decay=0.5)
    return Stepper(
        model, pack, choose("input-mixup"), Accelerator(), optimizer, fill=fill_tokens(tokenizer), seed=0, clip=1.0
    )


@pytest.mark.parametrize(("batch_size", "steps"), [(8, 15), (100, 3), (1, 120)])
def test_it_counts_the_steps_and_estimates_the_rest(stepper: Stepper, batch_size: int, steps: int) -> None:
    before = [p.detach().clone() for p in stepper.model.parameters()]
    found = rehearse(stepper, epochs=3, batch_size=batch_size, accumulate=1, seed=0)
    assert found["steps"] == steps
    assert found["seconds"] >= 0
    assert found["memory_bytes"] > 2**20
    assert all(torch.equal(a, b) for a, b in zip(before, stepper.model.parameters(), strict=True))


def test_ten_times_the_epochs_take_ten_times_as_long(stepper: Stepper) -> None:
    one = rehearse(stepper, epochs=100, batch_size=8, accumulate=1, seed=0)["seconds"]
    ten = rehearse(stepper, epochs=1000, batch_size=8, accumulate=1, seed=0)["seconds"]
    assert 3 < ten / one < 30


def test_what_the_recipe_refuses_is_found(quick: Any) -> None:
    with pytest.raises(InputError, match="layers: this model has levels"):
        quick(dry_run=True, recipe="manifold-mixup", options={"layers": "7"})
