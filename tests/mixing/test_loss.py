"""A recipe's loss in a loop of one's own."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from calmix.dynamics import Dynamics, easy_and_ambiguous
from calmix.errors import InputError
from calmix.mixing import RECIPES, Recipe, Step, batch_loss, fill_tokens
from calmix.mixing.recipes import (
    aum_saliency,
    cls_mixup,
    distil,
    erm,
    informed_mixup,
    input_mixup,
    manifold_mixup,
    tdmixup,
)
from calmix.recipes import across, cross_entropy


@pytest.fixture
def model(checkpoint: Any) -> Any:
    return tiny.without_dropout(AutoModelForSequenceClassification.from_pretrained(checkpoint("bert"))).train()


@pytest.fixture
def batch() -> Any:
    sentences, labels = tiny.texts(6)
    inputs = tiny.tokenizer("bert")(sentences, padding=True, return_tensors="pt")
    inputs["labels"] = torch.tensor([tiny.LABELS.index(label) for label in labels])
    return inputs


ROWS = torch.tensor([17, 3, 9, 0, 11, 6])
"""Where the rows of `batch` stand in the training set that `recorded` is of."""


def recorded() -> Dynamics:
    """Return the dynamics of eighteen samples over four epochs, easy and hard ones among them."""
    rng = np.random.default_rng(0)
    labels = np.arange(18) % 3
    logits = rng.normal(size=(4, 18, 3))
    logits[:, np.arange(18), labels] += np.linspace(-2, 4, 18)
    return Dynamics.from_logits(logits, labels)


def _loss(recipe: Recipe, model: nn.Module, batch: Any, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.eye(3)[batch["labels"]] if recipe.taught else None
    guided: dict[str, Any] = {"dynamics": recorded(), "rows": ROWS} if recipe.guide is not None else {}
    tokenizer = tiny.tokenizer("bert")
    return batch_loss(recipe, model, batch, generator=generator, tokenizer=tokenizer, teacher=teacher, **guided)


def test_plain_training_is_the_loss_transformers_computes(model: Any, batch: Any) -> None:
    torch.testing.assert_close(_loss(erm(), model, batch), model(**batch).loss)


def test_labels_may_be_distributions(model: Any, batch: Any) -> None:
    hard = _loss(cls_mixup(), model, batch)
    batch["labels"] = nn.functional.one_hot(batch["labels"], 3).double()
    torch.testing.assert_close(_loss(cls_mixup(), model, batch), hard)


def test_the_batch_is_left_as_it_was(model: Any, batch: Any) -> None:
    before = {name: tensor.clone() for name, tensor in batch.items()}
    _loss(input_mixup(), model, batch)
    assert before.keys() == batch.keys()
    assert all(torch.equal(batch[name], tensor) for name, tensor in before.items())


def test_a_batch_without_attention_mask_has_no_padding(model: Any, batch: Any) -> None:
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    expected = _loss(input_mixup(), model, batch)
    del batch["attention_mask"]
    torch.testing.assert_close(_loss(input_mixup(), model, batch), expected)


def test_choices_are_as_many_as_the_batch_has(checkpoint: Any) -> None:
    from transformers import AutoModelForMultipleChoice

    model = AutoModelForMultipleChoice.from_pretrained(checkpoint("bert", choices=True)).eval()
    ids = torch.randint(10, 90, (3, 4, 9), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([3, 0, 2])}
    torch.testing.assert_close(_loss(erm(), model, batch), model(**batch).loss)
    assert _loss(input_mixup(), model, batch).isfinite()


def test_variants_are_drawn_from_the_generator(model: Any, batch: Any) -> None:
    seen: set[int] = set()
    recipe = Recipe(lambda step: seen.add(step.variant) or step.logits.sum(-1), variants=lambda _model: 3)
    for seed in range(30):
        _loss(recipe, model, batch, seed)
    assert seen == {0, 1, 2}
    assert _loss(manifold_mixup(), model, batch, 5) == _loss(manifold_mixup(), model, batch, 5)


def test_a_bare_loop_lowers_the_loss(model: Any, batch: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    before = float(_loss(erm(), model, batch))
    for _ in range(30):
        loss = batch_loss(cls_mixup(), model, batch, generator=generator, tokenizer=tiny.tokenizer("bert"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(_loss(erm(), model, batch)) < 0.5 * before


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "back-translation"])
def test_a_wrapped_model_is_called_through_its_wrapper(model: Any, batch: Any, name: str) -> None:
    wrapped = nn.parallel.DistributedDataParallel(model)
    calls: list[int] = []
    wrapped.register_forward_hook(lambda *_: calls.append(1))
    expected = _loss(RECIPES[name](), model, batch)
    torch.testing.assert_close(_loss(RECIPES[name](), wrapped, batch), expected)
    assert calls


@pytest.mark.parametrize("name", ["erm", "input-mixup"])
def test_a_compiled_model_is_mixed_all_the_same(model: Any, batch: Any, name: str) -> None:
    compiled = torch.compile(model, backend="eager")
    compiled(**batch)  # what is compiled now does not look for edits any more
    torch.testing.assert_close(_loss(RECIPES[name](), compiled, batch), _loss(RECIPES[name](), model, batch))


@pytest.mark.usefixtures("one_process")
def test_a_model_compiled_inside_its_wrapper_is_refused(model: Any, batch: Any) -> None:
    wrapped = nn.parallel.DistributedDataParallel(torch.compile(model, backend="eager"))
    with pytest.raises(InputError, match="compiled before it was wrapped"):
        _loss(erm(), wrapped, batch)


def test_splitting_a_batch_over_devices_is_refused(model: Any, batch: Any) -> None:
    with pytest.raises(InputError, match="use DistributedDataParallel"):
        _loss(erm(), nn.DataParallel(model), batch)


def test_a_teacher_is_given_to_recipes_that_learn_from_one_and_to_no_other(model: Any, batch: Any) -> None:
    common = {"generator": torch.Generator(), "tokenizer": tiny.tokenizer("bert")}
    logits = model(**batch).logits.detach()
    alone = batch_loss(distil(alpha=0.0), model, batch, teacher=logits, **common)
    torch.testing.assert_close(alone, torch.zeros(()), atol=1e-6, rtol=0)
    with pytest.raises(InputError, match="needs a teacher's logits"):
        batch_loss(distil(), model, batch, **common)
    with pytest.raises(InputError, match="does not look at a teacher's logits"):
        batch_loss(erm(), model, batch, teacher=logits, **common)


GUIDED = {
    "tdmixup": tdmixup(),
    "informed-mixup": informed_mixup(),
    "informed-mixup at the input": informed_mixup(at="input"),
    "aum-saliency": aum_saliency(),
    "aum-saliency at random": aum_saliency(saliency=False),
    "one's own": Recipe(lambda step: erm().loss(step) * step.signal("margin"), guide=lambda of: {"margin": of.aum}),
}


@pytest.mark.parametrize("name", GUIDED)
def test_a_guided_recipe_has_the_loss_that_calmix_train_gives_a_step_of_these_rows(
    model: Any, batch: Any, name: str
) -> None:
    recipe, dynamics = GUIDED[name], recorded()
    assert recipe.guide is not None
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    step = Step(
        model=model,
        inputs=inputs,
        targets=nn.functional.one_hot(batch["labels"], 3).float(),
        generator=torch.Generator().manual_seed(0),
        rows=ROWS,  # in the training set, as the loop has them
        signals={key: torch.from_numpy(np.asarray(values)) for key, values in recipe.guide(dynamics).items()},
        fill=fill_tokens(tiny.tokenizer("bert")),
    )
    found = _loss(recipe, model, batch)
    torch.testing.assert_close(found, recipe.loss(step).mean())
    assert (found - _loss(erm(), model, batch)).abs() > 1e-4


def test_easy_and_ambiguous_rows_are_mixed_by_hand(model: Any, batch: Any) -> None:
    easy, ambiguous = (set(half.tolist()) for half in easy_and_ambiguous(recorded(), fraction=0.33))
    side = [0 if row in easy else 1 if row in ambiguous else -1 for row in ROWS.tolist()]
    assert {0, 1} <= set(side)
    with torch.no_grad():
        logits, targets = model(**batch).logits, nn.functional.one_hot(batch["labels"], 3).float()
        found = _loss(tdmixup(alpha=0.4), model, batch)
        generator = torch.Generator().manual_seed(0)
        step = Step(model=model, inputs={}, targets=targets, generator=generator)
        partner, share = across(step, torch.tensor(side)), step.beta(0.4)[:, None]
        paired = torch.tensor([k >= 0 for k in side])
        assert all(side[i] + side[int(partner[i])] == 1 for i in range(6) if side[i] >= 0)
        mixed_logits = share * logits + (1 - share) * logits[partner]
        mixed_targets = share * targets + (1 - share) * targets[partner]
        expected = cross_entropy(logits, targets).mean() + cross_entropy(mixed_logits, mixed_targets)[paired].mean()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["tdmixup", "informed-mixup", "aum-saliency"])
def test_a_guided_recipe_is_refused_without_dynamics_and_another_with_some(model: Any, batch: Any, name: str) -> None:
    common = {"generator": torch.Generator(), "tokenizer": tiny.tokenizer("bert")}
    recipe = RECIPES[name]()
    with pytest.raises(InputError, match=r"^this recipe needs training dynamics: give those of a run, "):
        batch_loss(recipe, model, batch, **common)
    with pytest.raises(InputError, match=r"^give dynamics and rows together"):
        batch_loss(recipe, model, batch, dynamics=recorded(), **common)
    with pytest.raises(InputError, match=r"^dynamics must be a Dynamics, .* not str$"):
        batch_loss(recipe, model, batch, dynamics="run", rows=ROWS, **common)
    with pytest.raises(InputError, match=r"^this recipe does not look at training dynamics$"):
        batch_loss(erm(), model, batch, dynamics=recorded(), rows=ROWS, **common)
    with pytest.raises(InputError, match=r"^give dynamics and rows together"):
        batch_loss(erm(), model, batch, rows=ROWS, **common)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (ROWS[:5], "^rows must be a tensor of 6 positions"),
        (ROWS.float(), "^rows must be a tensor of 6 positions"),
        ([0] * 6, "^rows must be a tensor of 6 positions"),
        (ROWS + 1, r"^rows holds 18; the dynamics are of 18 samples, 0 … 17$"),
        (ROWS - 1, r"^rows holds -1; the dynamics are of 18 samples"),
    ],
)
def test_rows_that_are_not_among_the_samples_are_refused(model: Any, batch: Any, rows: Any, says: str) -> None:
    common = {"generator": torch.Generator(), "tokenizer": tiny.tokenizer("bert")}
    with pytest.raises(InputError, match=says):
        batch_loss(tdmixup(), model, batch, dynamics=recorded(), rows=rows, **common)


def test_what_takes_a_memory_of_the_whole_set_is_refused(model: Any, batch: Any) -> None:
    with pytest.raises(InputError, match=r"^this recipe remembers what the model said about every sample"):
        _loss(aum_saliency(search="set"), model, batch)


def test_a_batch_of_images_needs_no_tokenizer(image_checkpoint: Any, image_architecture: str) -> None:
    from calmix.mixing import RECIPES
    from calmix.mixing.loss import batch_loss
    from calmix.models import load_trained, pack_images

    model, how = load_trained(image_checkpoint(image_architecture))
    examples = tiny.images(6)
    batch = pack_images(examples, how).batch(torch.arange(6)) | {"labels": torch.from_numpy(examples.labels)}
    for name in ("erm", "input-mixup", "manifold-mixup", "feature-mixup", "on-off-manifold", "aum-saliency"):
        guided: dict[str, Any] = {"dynamics": recorded(), "rows": ROWS} if name == "aum-saliency" else {}
        generator = torch.Generator().manual_seed(0)
        model.zero_grad()
        batch_loss(RECIPES[name](), model.train(), batch, generator=generator, **guided).backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
        assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_a_batch_of_texts_needs_the_tokenizer(checkpoint: Any) -> None:
    from calmix.models import load_trained

    model, _ = load_trained(checkpoint("bert"))
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.tensor([0, 1])}
    with pytest.raises(InputError, match="needs the tokenizer"):
        batch_loss(erm(), model, batch, generator=torch.Generator())


@pytest.mark.parametrize("recipe", ["erm", erm, None])
def test_what_is_no_recipe_is_refused(model: Any, batch: Any, recipe: Any) -> None:
    with pytest.raises(InputError, match=r"^batch_loss takes a Recipe, as erm\(\) or choose\('erm'\) make it, not "):
        batch_loss(recipe, model, batch, generator=torch.Generator(), tokenizer=tiny.tokenizer("bert"))


def test_a_batch_without_labels_is_refused(model: Any, batch: Any) -> None:
    del batch["labels"]
    with pytest.raises(InputError, match=r"^the batch has no labels \(it has: input_ids, .*attention_mask\)$"):
        _loss(erm(), model, batch)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_integers_of_any_size(model: Any, batch: Any, dtype: torch.dtype) -> None:
    expected = _loss(erm(), model, batch)
    batch["labels"] = batch["labels"].to(dtype)
    assert _loss(erm(), model, batch) == expected


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (torch.zeros(6), "^labels has dtype torch.float32; class indices must be integers$"),
        (torch.tensor([0, 1, 2, 3, 0, 1]), "^labels holds 3; labels must lie in 0 … 2$"),
        (torch.tensor([0, 1, 2, -100, 0, 1]), "^labels holds -100; labels must lie in 0 … 2$"),
        (torch.zeros(6, 4), "^labels has 4 classes, the model has 3$"),
        (torch.tensor(0), "^labels must be a tensor of class indices"),
        ([0] * 6, "^labels must be a tensor of class indices"),
    ],
)
def test_labels_that_do_not_fit_the_model_are_refused(model: Any, batch: Any, labels: Any, says: str) -> None:
    batch["labels"] = labels
    with pytest.raises(InputError, match=says):
        _loss(erm(), model, batch)


@pytest.mark.parametrize("shape", [(6, 2), (6, 4), (5, 3), (6,)])
def test_a_teacher_of_other_rows_or_classes_is_refused(model: Any, batch: Any, shape: tuple[int, ...]) -> None:
    common = {"generator": torch.Generator(), "tokenizer": tiny.tokenizer("bert")}
    with pytest.raises(InputError, match=r"^the teacher's logits are \[.*\], the labels \[6, 3\]$"):
        batch_loss(distil(), model, batch, teacher=torch.zeros(shape), **common)


def test_a_loss_that_is_not_one_per_row_is_refused_in_the_words_of_calmix_train(model: Any, batch: Any) -> None:
    says = r"^the recipe's loss has shape \(\) for 6 rows: it must return one per row$"
    with pytest.raises(InputError, match=says):
        _loss(Recipe(lambda step: step.logits.mean()), model, batch)
