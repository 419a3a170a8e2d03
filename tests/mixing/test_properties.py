"""Every public part of a recipe, given what hypothesis draws: options that nobody can mean, and batches of any size."""

import inspect
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix import recipes
from calmix.errors import InputError
from calmix.mixing import Step, fill_tokens
from calmix.models import encode, load_trained
from calmix.recipes import Pool, Recipe

FUNCTIONS = {name: getattr(recipes, name) for name in recipes.__all__ if inspect.isfunction(getattr(recipes, name))}
MADE = {name: make for name, make in FUNCTIONS.items() if inspect.signature(make).return_annotation is Recipe}
ASKED = os.environ.get("HYPOTHESIS_EXAMPLES")
few = settings(max_examples=int(ASKED or 20), derandomize=ASKED is None)

WILD: dict[type, tuple[Any, ...]] = {
    int: (0, -1, 1, 2, 10**9),
    float: (0.0, 0.5, 1.0, -1.0, 2.0, 1e-9, 1e300, math.nan, math.inf, -math.inf),
    str: ("", "head", "inner", "input", "logits", "set", "usual", "x\\ny"),
    bool: (True, False),
    tuple: ((), (1,), (1, 99), (-3,)),
}


@pytest.mark.parametrize("name", MADE)
@few
@given(data=st.data())
def test_a_recipe_of_any_options_is_made_or_refused_in_one_line(name: str, data: Any) -> None:
    if name == "choose":
        options = {key: data.draw(st.sampled_from(WILD[str])) for key in ("alpha", "smoothing")}
        given_: dict[str, Any] = {"name": data.draw(st.sampled_from((*recipes.RECIPES, "", "x"))), "options": options}
    else:
        parameters = inspect.signature(MADE[name]).parameters.values()
        given_ = {"recipe": recipes.erm()} if "recipe" in inspect.signature(MADE[name]).parameters else {}
        for each in parameters:
            if each.kind is each.KEYWORD_ONLY and data.draw(st.booleans()):
                given_[each.name] = data.draw(st.sampled_from(WILD[type(each.default)]))
    try:
        made = MADE[name](**given_)
    except InputError as error:
        made = None
        said = str(error)
    assert isinstance(made, Recipe) if made is not None else "\n" not in said


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Any) -> Any:
    return load_trained(checkpoint("bert"))[1]


@pytest.fixture(scope="module")
def batch_of(checkpoint: Any) -> Callable[[Any], Step]:
    """Return `batch_of(data)`: a batch of any size and order, with sides, a teacher and partners in the bank."""
    model, tokenizer = load_trained(checkpoint("bert"))
    tiny.without_dropout(model).train()
    packed = encode(tiny.examples(8), tokenizer, max_length=tiny.POSITIONS)

    def make(data: Any) -> Step:
        rows = torch.tensor(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True)))
        seed = data.draw(st.integers(0, 999))
        rng = np.random.default_rng(seed)
        signals = {
            "side": torch.from_numpy(rng.integers(-1, 2, 8)),
            "teacher": torch.from_numpy(rng.normal(size=(8, 3))).float(),
            "similar": torch.from_numpy(rng.integers(0, 8, 8)),
            "dissimilar": torch.from_numpy(rng.integers(0, 8, 8)),
            "remembered_logits": torch.from_numpy(rng.normal(size=(8, 3))).float(),
            "remembered_targets": torch.from_numpy(rng.dirichlet(np.ones(3), 8)).float(),
        }
        return Step(
            model=model,
            inputs=packed.batch(rows, width=packed.width(rows.numpy())),
            targets=torch.from_numpy(rng.dirichlet(np.ones(3), len(rows))).float(),
            generator=torch.Generator().manual_seed(seed),
            fill=fill_tokens(tokenizer),
            rows=rows,
            signals=signals,
        )

    return make


def losses(term: Callable[[Step], torch.Tensor], step: Step) -> bool:
    """Return whether a term gives every row a finite loss."""
    found = term(step)
    return found.shape == step.targets.shape[:1] and bool(found.isfinite().all())


def partners(step: Step, found: torch.Tensor) -> bool:
    return found.shape == step.targets.shape[:1] and all(0 <= row < len(found) for row in found.tolist())


def mixes(step: Step) -> bool:
    weight = torch.rand(len(step.targets), generator=step.generator)
    found = recipes.mix(step.targets, step.permutation(), weight)
    return bool(torch.isclose(found.sum(1), torch.ones(())).all() and (found >= 0).all())


def mixed_forward(step: Step) -> bool:
    weight, partner = torch.rand(len(step.targets), generator=step.generator), step.permutation()
    levels = [recipes.mixed_logits(step, partner, weight, level=level) for level in (0, 1, "inner", "head")]
    return all(bool(found.isfinite().all()) for found in levels)


def laid_out(step: Step, sampling: Callable[[Pool], Any], everybody: bool) -> bool:
    """Return whether an epoch's batches are of samples that there are, and, if asked for, of each once."""
    rng = np.random.default_rng(len(step.targets))
    side = step.signals["side"].numpy()
    pool = Pool(rng.integers(1, 9, 8), None, int(rng.integers(1, 9)), rng, np.random.default_rng(0), {"side": side})
    found = sorted(np.concatenate(sampling(pool) or [np.zeros(0, np.int64)]).tolist())
    return found == [*range(8)] if everybody else {*found} <= {*np.flatnonzero(side >= 0).tolist()}


# Function → whether what it makes of a batch can be true.
OF_BATCHES: dict[str, Callable[[Step], bool]] = {
    "across": lambda s: partners(s, recipes.across(s, recipes.sides(s, "side"))),
    "by_saliency": lambda s: all(partners(s, each) for each in recipes.by_saliency(s, recipes.sides(s, "side"))),
    "clean": lambda s: losses(recipes.clean(smoothing=0.1), s),
    "cross_entropy": lambda s: losses(lambda s: recipes.cross_entropy(s.logits, s.targets), s),
    "divergence": lambda s: losses(lambda s: recipes.divergence(s.logits, s.signal("teacher"), tau=3.0), s),
    "from_bank": lambda s: all(len(each) == len(s.targets) for each in recipes.from_bank(s, "similar")),
    "mix": mixes,
    "mixed": lambda s: losses(recipes.mixed("head", alpha=0.4, per_sample=True), s),
    "mixed_logits": mixed_forward,
    "negative_entropy": lambda s: losses(recipes.negative_entropy(), s),
    "reversed_batch": lambda s: partners(s, recipes.reversed_batch(s)),
    "shuffled": lambda s: partners(s, recipes.shuffled(s)),
    "sides": lambda s: {*recipes.sides(s, "side").tolist(), *recipes.sides(s, "none").tolist()} <= {-1, 0, 1},
    "smooth": lambda s: bool(torch.isclose(recipes.smooth(s.targets, 0.3).sum(1), torch.ones(())).all()),
    "total": lambda s: losses(recipes.total((0.5, recipes.clean()), (2.0, recipes.negative_entropy())), s),
    "two_sided": lambda s: all(laid_out(s, recipes.two_sided("side", cycle=cycle), False) for cycle in (True, False)),
    "uniform": lambda s: laid_out(s, recipes.uniform, True),
}


@pytest.mark.parametrize("name", OF_BATCHES)
@few
@given(data=st.data())
def test_a_part_of_a_recipe_makes_something_of_any_batch(name: str, batch_of: Any, data: Any) -> None:
    assert OF_BATCHES[name](batch_of(data))


@few
@given(data=st.data())
def test_the_loss_of_any_batch_is_a_number(batch_of: Any, tokenizer: Any, data: Any) -> None:
    step, recipe = batch_of(data), data.draw(st.sampled_from((recipes.cls_mixup(), recipes.input_mixup())))
    batch = {**step.inputs, "labels": step.targets}
    assert recipes.batch_loss(recipe, step.model, batch, generator=step.generator, tokenizer=tokenizer).isfinite()


def test_no_public_function_is_left_out() -> None:
    assert {*FUNCTIONS} == {*OF_BATCHES, *MADE, "batch_loss"}
