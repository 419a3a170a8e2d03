"""The named methods: what each loss is, that it trains, and that wrapping or recomputing changes no gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_origin

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.mixing import RECIPES, Recipe, Step, batch_loss, fill_tokens, levels
from calmix.mixing.choosing import options_of
from calmix.mixing.manifold import off_manifold, on_manifold
from calmix.mixing.pairing import reversed_batch
from calmix.mixing.recipes import (
    cls_mixup,
    erl,
    erm,
    feature_mixup,
    input_mixup,
    label_smoothing,
    manifold_mixup,
    on_off_manifold,
)
from calmix.mixing.targets import cross_entropy, smooth
from calmix.mixing.terms import clean, mixed, total
from calmix.models import encode, load_for_training

MIXING: dict[str, Callable[..., Recipe]] = {
    name: RECIPES[name] for name in ("input-mixup", "manifold-mixup", "cls-mixup", "feature-mixup")
}
SAME_AS_PLAIN = {"padding": "none", "mask": "own"}


def _again(step: Step, seed: int = 0) -> Step:
    """Return the step as it was before anything was drawn or computed."""
    step.__dict__.pop("logits", None)
    step.generator.manual_seed(seed)
    return step


# ---- formulas


def test_erm_is_cross_entropy(make_step: Any) -> None:
    step = make_step()
    torch.testing.assert_close(erm().loss(step), cross_entropy(step.logits, step.targets))


def test_label_smoothing_is_cross_entropy_to_smoothed_labels(make_step: Any) -> None:
    step = make_step()
    torch.testing.assert_close(label_smoothing().loss(step), cross_entropy(step.logits, smooth(step.targets, 0.1)))


@pytest.mark.parametrize("beta", [0.0, 0.1, 2.0])
def test_erl_is_cross_entropy_minus_beta_times_entropy(make_step: Any, beta: float) -> None:
    step = make_step()
    entropy = torch.distributions.Categorical(logits=step.logits).entropy()
    expected = cross_entropy(step.logits, step.targets) - beta * entropy
    torch.testing.assert_close(erl(beta=beta).loss(step), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("name", MIXING)
def test_alpha_0_is_plain_cross_entropy(make_step: Any, name: str, smoothing: float) -> None:
    options = {} if name == "cls-mixup" else SAME_AS_PLAIN
    recipe = MIXING[name](alpha=0.0, smoothing=smoothing, **options)
    for variant in range(recipe.variants(make_step().model)):
        step = make_step()
        step.variant = variant
        expected = cross_entropy(step.forward(step.inputs), smooth(step.targets, smoothing))
        torch.testing.assert_close(recipe.loss(step), expected, rtol=1e-4, atol=1e-5)


def test_cls_mixup_before_the_inner_layer_at_alpha_0_is_plain_too(make_step: Any) -> None:
    step = make_step()
    torch.testing.assert_close(cls_mixup(alpha=0.0, at="inner").loss(step), cross_entropy(step.logits, step.targets))


def test_with_no_share_and_no_moves_on_off_manifold_is_cross_entropy_twice_plus_doubt(make_step: Any) -> None:
    step = make_step()
    losses = on_off_manifold(on_size=0.0, off_size=0.0, share=0.0).loss(step)
    doubt = -torch.log_softmax(step.logits, -1).mean(-1)
    torch.testing.assert_close(losses, 2 * cross_entropy(step.logits, step.targets) + doubt)


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_on_off_manifold_is_the_sum_of_its_three_terms(make_step: Any, rows: int) -> None:
    step = make_step(rows=rows)
    options = {"on_size": 0.02, "off_size": 0.03, "share": 0.2}
    on = on_manifold(pairing=reversed_batch, size=0.02, share=0.2, smoothing=0.1)(step)
    expected = clean(smoothing=0.1)(step) + on + off_manifold(size=0.03)(step)
    torch.testing.assert_close(on_off_manifold(**options, smoothing=0.1).loss(step), expected)


@pytest.mark.parametrize(("name", "level"), [("input-mixup", 0), ("cls-mixup", "head")])
def test_a_mixup_is_one_mixed_term_and_the_unmixed_batch_is_not_in_it(make_step: Any, name: str, level: Any) -> None:
    step = make_step()
    loss = MIXING[name](alpha=0.7).loss(step)
    torch.testing.assert_close(loss, mixed(level, alpha=0.7)(_again(step)))


def test_feature_mixup_takes_the_label_of_the_nearer_sample(make_step: Any) -> None:
    step = make_step()
    loss = feature_mixup(alpha=0.7).loss(step)
    torch.testing.assert_close(loss, mixed(0, alpha=0.7, hard=True)(_again(step)))


def test_manifold_mixup_has_a_variant_for_each_level_from_the_input_to_the_head(make_step: Any) -> None:
    recipe = manifold_mixup(alpha=0.7)
    step = make_step()
    assert recipe.variants(step.model) == 4
    for variant, level in enumerate([0, 1, 2, "head"]):
        step.variant = variant
        loss = recipe.loss(_again(step))
        torch.testing.assert_close(loss, mixed(level, alpha=0.7)(_again(step)))


def test_manifold_mixup_counts_layers_from_the_head_too(make_step: Any) -> None:
    step = make_step()
    for layer, level in ((-1, "head"), (-2, 2)):
        loss = manifold_mixup(alpha=0.7, layers=(layer,)).loss(_again(step))
        torch.testing.assert_close(loss, mixed(level, alpha=0.7)(_again(step)))


def test_manifold_mixup_draws_from_the_layers_it_is_given(make_step: Any) -> None:
    recipe = manifold_mixup(alpha=0.7, layers=(3, 1))
    step = make_step()
    assert recipe.variants(step.model) == 2
    for variant, level in enumerate(["head", 1]):
        step.variant = variant
        torch.testing.assert_close(recipe.loss(_again(step)), mixed(level, alpha=0.7)(_again(step)))


@pytest.mark.parametrize("layer", [-5, 4])
def test_a_layer_the_model_does_not_have_is_refused_before_training(make_step: Any, layer: int) -> None:
    with pytest.raises(InputError, match=f"levels 0 to 3, there is no {layer}"):
        manifold_mixup(layers=(0, layer)).variants(make_step().model)


@pytest.mark.parametrize("name", MIXING)
def test_one_lambda_for_the_batch_unless_one_each_is_asked_for(make_step: Any, name: str) -> None:
    asked: list[bool] = []
    for per_sample in (False, True):
        step = make_step()
        step.beta = lambda _alpha, per_sample: asked.append(per_sample) or torch.full((5,), 0.5)
        MIXING[name](per_sample=per_sample).loss(step)
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("make", "option"),
    [(erl, "beta"), (on_off_manifold, "on_size"), (on_off_manifold, "off_size"), (on_off_manifold, "share")],
)
def test_negative_weights_and_sizes_are_refused(make: Any, option: str) -> None:
    with pytest.raises(InputError, match=f"{option} must be"):
        make(**{option: -0.1})


WORDS = [
    (name, option.name)
    for name, make in RECIPES.items()
    for option in options_of(make)
    if get_origin(option.kind) is Literal
]


def test_recipes_take_words() -> None:
    assert ("on-off-manifold", "pairs") in WORDS
    assert ("aum-saliency", "similarity") in WORDS


@pytest.mark.parametrize(("name", "option"), WORDS)
def test_words_that_mean_nothing_are_refused_when_the_recipe_is_made(name: str, option: str) -> None:
    with pytest.raises(InputError, match=f"^{option} must be one of .*, not 'x'$"):
        RECIPES[name](**{option: "x"})


# ---- every recipe, on every kind of data


def _trained(recipe: Recipe, folder: Path, kind: str, *, steps: int = 30) -> tuple[float, float]:
    """Return the clean loss before and after a few steps on one batch per number of choices."""
    torch.manual_seed(0)
    names = () if kind == "choices" else tiny.LABELS
    model, tokenizer = load_for_training(str(folder), label_names=names, choices=kind == "choices")
    tiny.without_dropout(model).train()
    examples = tiny.examples(12, kind=kind, counts=(2, 3))
    packed = encode(examples, tokenizer, max_length=64)
    labels = torch.from_numpy(examples.labels)
    counts = np.zeros(12) if packed.counts is None else packed.counts
    batches = []
    for count in np.unique(counts):
        rows = torch.from_numpy(counts == count).nonzero()[:, 0]
        choices = int(count) or None
        batches.append((rows, {**packed.batch(rows, width=24, choices=choices), "labels": labels[rows]}))
    dynamics = Dynamics.from_logits(np.random.default_rng(0).normal(size=(3, 12, 3)), examples.labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)

    def loss(method: Recipe) -> Tensor:
        found = torch.zeros(())
        for rows, b in batches:
            classes = b["input_ids"].shape[1] if kind == "choices" else 3
            more: dict[str, Any] = {"dynamics": dynamics, "rows": rows} if method.guide is not None else {}
            if method.taught:
                more["teacher"] = 5.0 * torch.nn.functional.one_hot(b["labels"], classes)
            found = found + batch_loss(method, model, b, generator=generator, tokenizer=tokenizer, **more)
        return found

    before = float(loss(erm()))
    for _ in range(steps):
        loss(recipe).backward()
        optimizer.step()
        optimizer.zero_grad()
    return before, float(loss(erm()))


@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_few_steps_lower_the_loss(checkpoint: Any, name: str, kind: str) -> None:
    before, after = _trained(RECIPES[name](), checkpoint("bert", choices=kind == "choices"), kind)
    assert after < 0.8 * before


@pytest.mark.parametrize("architecture", [a for a in tiny.ARCHITECTURES if a != "bert"])
def test_every_architecture_learns_from_mixed_texts(checkpoint: Any, architecture: str) -> None:
    before, after = _trained(manifold_mixup(alpha=0.4), checkpoint(architecture), "pair")
    assert after < 0.8 * before


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", RECIPES)
def test_batches_of_any_size_give_a_finite_loss_per_row(make_step: Any, name: str, rows: int) -> None:
    recipe = RECIPES[name]()
    step = make_step(rows=rows)
    for variant in range(recipe.variants(step.model)):
        step.variant = variant
        losses = recipe.loss(step)
        assert losses.shape == (rows,)
        assert losses.isfinite().all()


@pytest.mark.parametrize("name", RECIPES)
def test_the_generator_alone_decides(make_step: Any, name: str) -> None:
    recipe, step = RECIPES[name](), make_step()
    one, same = recipe.loss(_again(step, 1)), recipe.loss(_again(step, 1))
    assert torch.equal(one, same)
    if name in MIXING:
        assert not torch.equal(one, recipe.loss(_again(step, 2)))


# ---- activation recomputation


TWICE_AT_ONE_LAYER = Recipe(total((0.5, mixed(1, alpha=0.7)), (0.5, mixed(1, alpha=0.7)), (1.0, clean())))
RECOMPUTED = {name: make() for name, make in RECIPES.items() if name != "back-translation"}
RECOMPUTED["two mixed terms at one layer"] = TWICE_AT_ONE_LAYER


def _gradients(step: Step, recipe: Recipe, variant: int, gradients_of: Any) -> dict[str, Tensor]:
    step.variant = variant
    found: dict[str, Tensor] = gradients_of(step, recipe.loss(_again(step)).mean())
    return found


@pytest.mark.parametrize("name", RECOMPUTED)
@pytest.mark.parametrize("architecture", [a for a in tiny.ARCHITECTURES if a != "mpnet"])
def test_recomputing_activations_changes_no_gradient(
    make_step: Any, gradients_of: Any, architecture: str, name: str
) -> None:
    recipe, step = RECOMPUTED[name], make_step(architecture)
    for variant in range(recipe.variants(step.model)):
        expected = _gradients(step, recipe, variant, gradients_of)
        step.model.gradient_checkpointing_enable({"use_reentrant": False})
        found = _gradients(step, recipe, variant, gradients_of)
        step.model.gradient_checkpointing_disable()
        for key, gradient in expected.items():
            torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6, msg=f"variant {variant}: {key}")


def test_activations_are_recomputed_while_texts_are_mixed(make_step: Any) -> None:
    step = make_step("bert")
    step.model.gradient_checkpointing_enable({"use_reentrant": False})
    calls: list[str] = []
    for name in ("1", "0"):
        inner = step.model.bert.encoder.layer[int(name)].attention
        inner.register_forward_hook(lambda *_, name=name: calls.append(name))
    mixed(1, alpha=0.7)(step).mean().backward()
    assert calls == ["0", "1", "1"]  # the second layer once more in the backward pass, the edited one not


def test_the_test_above_would_notice_a_recomputed_edit(
    make_step: Any, gradients_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: dict[str, Any] = {}

    @contextmanager
    def careless(model: nn.Module, site: Any, edit: Any) -> Iterator[None]:
        """Leave one hook in place, which applies whatever edit came last: also when the layer is recomputed."""
        if site.path not in current:
            module = model.get_submodule(site.path)
            module.register_forward_hook(lambda _m, _a, output: current[site.path](output))
        current[site.path] = edit
        yield

    monkeypatch.setattr(levels, "rewriting", careless)
    step = make_step("bert")
    expected = _gradients(step, TWICE_AT_ONE_LAYER, 0, gradients_of)
    step.model.gradient_checkpointing_enable({"use_reentrant": False})
    found = _gradients(step, TWICE_AT_ONE_LAYER, 0, gradients_of)
    assert any(not torch.allclose(found[key], gradient, rtol=1e-4, atol=1e-6) for key, gradient in expected.items())


# ---- wrapped for several processes


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_a_wrapped_model_has_the_gradients_of_the_bare_one_and_no_parameter_is_unused(
    make_step: Any, gradients_of: Any, architecture: str
) -> None:
    step = make_step(architecture)
    for name, recipe in RECOMPUTED.items():
        for variant in range(recipe.variants(step.model)):
            expected = _gradients(step, recipe, variant, gradients_of)
            # Without a search for unused parameters, an unused one would stop the second backward.
            step.wrapped = nn.parallel.DistributedDataParallel(step.model)
            for _ in range(2):
                found = _gradients(step, recipe, variant, gradients_of)
            step.wrapped = None
            for key, gradient in expected.items():
                torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6, msg=f"{name} {variant}: {key}")


def test_tokens_to_pad_with_exist_for_every_padding_a_recipe_has_by_default(architecture: str) -> None:
    assert {"sep", "pad"} <= fill_tokens(tiny.tokenizer(architecture)).keys()


def test_input_mixup_is_what_papers_call_mixup() -> None:
    assert RECIPES["input-mixup"] is input_mixup
    assert "mixup" not in RECIPES
