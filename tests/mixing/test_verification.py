"""Trying a network before a run: what is found, what is refused, and that nothing is left behind."""

import re
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from calmix.errors import InputError
from calmix.mixing import RECIPES, verify_mixing
from calmix.mixing.recipe import Recipe
from calmix.mixing.terms import clean, mixed
from calmix.models import encode, load_for_training, load_trained, pack_images

EVERYWHERE = Recipe(clean(), levels=lambda parts: (*range(len(parts.layers) + 1), "inner", "head"))


def _tried(folder: Any, recipe: Recipe, *, kind: str = "text") -> list[str]:
    names = () if kind == "choices" else tiny.LABELS
    model, tokenizer = load_for_training(str(folder), label_names=names, choices=kind == "choices")
    packed = encode(tiny.examples(6, kind=kind), tokenizer, max_length=64)
    return verify_mixing(model, packed, recipe, tokenizer)


@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
def test_a_network_that_can_be_mixed_passes_at_every_level(checkpoint: Any, encoder: str, kind: str) -> None:
    assert _tried(checkpoint(encoder, choices=kind == "choices"), EVERYWHERE, kind=kind) == []


def test_every_recipe_says_where_it_mixes() -> None:
    assert all(maker().levels is not None for maker in RECIPES.values())


@pytest.mark.parametrize(
    ("kind", "recipe", "options", "message"),
    [
        ("bart", "input-mixup", {}, "at the input (its decoder reads each text again"),
        ("t5", "manifold-mixup", {}, "at the input, layers 1, 2 (its decoder"),
        ("lilt", "manifold-mixup", {}, "at layer 1 (with λ = 1 or 0 a mix is not one of the two)"),
        ("canine", "on-off-manifold", {}, "at the input (it has no table of input embeddings"),
        ("squeezebert", "manifold-mixup", {"layers": (1,)}, "at layer 1 (SqueezeBertForSequenceClassification does"),
        ("t5gemma", "aum-saliency", {"at": "input"}, "at the input (its decoder reads each text again"),
    ],
)
def test_a_level_that_is_no_mixing_is_refused_in_a_line_that_names_what_works(
    checkpoint_of: Any, kind: str, recipe: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(f"cannot be mixed {message}")) as caught:
        _tried(checkpoint_of(kind), RECIPES[recipe](**options))
    assert re.search(r": it can at .*head$", str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bart", "lilt", "canine", "squeezebert", "t5gemma", "zamba"])
def test_what_mixes_nothing_or_at_the_head_trains_everywhere(checkpoint_of: Any, kind: str) -> None:
    for recipe in ("erm", "cls-mixup", "aum-saliency", "distil"):
        assert _tried(checkpoint_of(kind), RECIPES[recipe]()) == []


def test_features_that_the_logits_are_not_made_of_are_refused(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(6), tokenizer, max_length=64)
    model.register_forward_hook(lambda _m, _a, out: out.__setitem__("logits", out.logits.tanh()))
    with pytest.raises(
        InputError, match=r"at head \(what its head reads is not what its logits are made of\): it can at"
    ):
        verify_mixing(model, packed, RECIPES["cls-mixup"](), tokenizer)
    assert verify_mixing(model, packed, RECIPES["erm"](), tokenizer) == []


def test_texts_that_a_network_cannot_be_trained_on_are_refused_in_a_line(checkpoint_of: Any) -> None:
    with pytest.raises(
        InputError, match=r"^ReformerForSequenceClassification cannot be trained on these texts \(If tr"
    ):
        _tried(checkpoint_of("reformer"), RECIPES["erm"]())


def test_of_a_recipe_that_does_not_say_where_it_mixes_all_levels_are_tried_and_none_is_refused(
    checkpoint: Any, checkpoint_of: Any
) -> None:
    own = Recipe(mixed(0, alpha=1.0))
    assert _tried(checkpoint("bert"), own) == []
    (note,) = _tried(checkpoint_of("bart"), own)
    assert re.fullmatch(
        r"Bart\w+ cannot be mixed at the input, layers 1, 2 \(its decoder .*\): it can at inner, head", note
    )


def test_where_no_hidden_layers_are_found_manifold_mixup_says_so(checkpoint_of: Any) -> None:
    (note,) = _tried(checkpoint_of("funnel"), RECIPES["manifold-mixup"]())
    assert note.endswith("no hidden layers are found in it: only the input and the head are mixed")
    assert _tried(checkpoint_of("funnel"), RECIPES["input-mixup"]()) == []


def test_images_are_tried_too(image_checkpoint: Any, image_architecture: str) -> None:
    model, how = load_trained(image_checkpoint(image_architecture))
    pixels = pack_images(tiny.images(4), how)
    assert verify_mixing(model, pixels, RECIPES["manifold-mixup"](), how) == []
    assert verify_mixing(model, pixels, RECIPES["input-mixup"](), how) == []


def test_nothing_is_left_behind(checkpoint: Any, image_checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    network, how = load_trained(image_checkpoint("convnet"))
    texts, pixels = encode(tiny.examples(6), tokenizer, max_length=64), pack_images(tiny.images(4), how)
    for tried, packed, reader in ((model, texts, tokenizer), (network, pixels, how)):
        tried.train()
        frozen: nn.Module = next(tried.children())
        frozen.eval()
        before = {name: value.clone() for name, value in tried.state_dict().items()}
        drawn = torch.get_rng_state()
        verify_mixing(tried, packed, RECIPES["manifold-mixup"](), reader)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert all(torch.equal(value, before[name]) for name, value in tried.state_dict().items())
        assert tried.training
        assert not frozen.training
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in tried.modules())
        assert all(p.grad is None for p in tried.parameters())
    assert len(texts) == 6


def test_a_sentence_cnn_is_tried_as_any_network() -> None:
    examples = tiny.examples(6)
    model, tokenizer = load_for_training("sentence-cnn", label_names=tiny.LABELS, examples=examples)
    packed = encode(examples, tokenizer, max_length=64)
    assert all(verify_mixing(model, packed, RECIPES[name](), tokenizer) == [] for name in ("input-mixup", "cls-mixup"))
