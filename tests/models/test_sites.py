"""Replacing the tensor at a place in a network, and what the head reads."""

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.models import Site, anatomy, encode, head_input, head_of, load_trained, pooled, rewriting, site_of_layer
from calmix.models.sites import last_tokens


def _loaded(folder: Any, *, choices: bool = False) -> tuple[nn.Module, dict[str, Tensor]]:
    model, tokenizer = load_trained(folder)
    examples = tiny.examples(5, kind="choices" if choices else "pair", counts=(3,))
    packed = encode(examples, tokenizer, max_length=32)
    return model, packed.batch(torch.arange(5), width=24, choices=3 if choices else None)


def _sites(model: nn.Module) -> list[Site]:
    parts = anatomy(model)
    sites = [site_of_layer(parts, layer) for layer in range(len(parts.layers) + 1)]
    return [*sites, Site(parts.head, "input"), *([Site(parts.inner, "input")] if parts.inner else [])]


def test_an_edit_that_changes_nothing_leaves_every_bit_of_the_logits(checkpoint: Any, architecture: str) -> None:
    model, inputs = _loaded(checkpoint(architecture))
    plain = model(**inputs).logits
    for site in _sites(model):
        with rewriting(model, site, lambda tensor: tensor.clone()):
            assert torch.equal(model(**inputs).logits, plain), site


def test_the_network_goes_on_with_what_the_edit_returns(checkpoint: Any, architecture: str) -> None:
    model, _ = _loaded(checkpoint(architecture))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 90, (4, 9), generator=generator)  # equally long, so that a row's ids are all it has
    plain = model(ids, attention_mask=torch.ones_like(ids)).logits
    assert not torch.allclose(plain, plain[:1].expand_as(plain), atol=1e-2)
    for site in _sites(model):
        shapes: list[torch.Size] = []

        def first_row_everywhere(tensor: Tensor, shapes: list[torch.Size] = shapes) -> Tensor:
            shapes.append(tensor.shape)
            return tensor[:1].expand_as(tensor)

        with rewriting(model, site, first_row_everywhere):
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits
        assert [shape[0] for shape in shapes] == [4]
        torch.testing.assert_close(logits, plain[:1].expand_as(plain), msg=str(site))


def test_after_the_block_the_model_is_as_before_also_when_the_forward_fails(checkpoint: Any) -> None:
    model, inputs = _loaded(checkpoint("bert"))
    model.gradient_checkpointing_enable()
    plain = model(**inputs).logits
    site = site_of_layer(anatomy(model), 1)
    with pytest.raises(ZeroDivisionError), rewriting(model, site, lambda tensor: tensor * (1 // 0)):
        model(**inputs)
    assert torch.equal(model(**inputs).logits, plain)
    assert model.get_submodule(site.path).gradient_checkpointing


def test_recomputation_is_off_for_the_layer_that_is_edited_and_on_for_the_others(checkpoint: Any) -> None:
    model, inputs = _loaded(checkpoint("bert"))
    model.gradient_checkpointing_enable()
    first, second = (model.get_submodule(path) for path in anatomy(model).layers)
    with rewriting(model, site_of_layer(anatomy(model), 1), lambda tensor: tensor):
        assert not first.gradient_checkpointing
        assert second.gradient_checkpointing
        model(**inputs)
    assert first.gradient_checkpointing


def test_recomputation_of_a_module_around_the_site_is_off_too() -> None:
    outer = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    outer[0].gradient_checkpointing = True
    with rewriting(outer, Site("0.0"), lambda tensor: tensor):
        assert not outer[0].gradient_checkpointing
        outer(torch.ones(1, 2))
    assert outer[0].gradient_checkpointing


def test_an_edit_that_no_forward_comes_by_is_refused(checkpoint_of: Any) -> None:
    model, inputs = _loaded(checkpoint_of("squeezebert"))  # it calls the `forward` of its layers
    site = site_of_layer(anatomy(model), 1)
    refused = pytest.raises(InputError, match=r"does not use transformer\.encoder\.layers\.0 in a way that could be")
    with refused, rewriting(model, site, lambda tensor: tensor):
        model(**inputs)
    assert not model.get_submodule(site.path)._forward_hooks


def test_of_a_module_that_serves_as_several_layers_one_call_is_edited(checkpoint_of: Any) -> None:
    model, inputs = _loaded(checkpoint_of("albert"))
    one, two = (site_of_layer(anatomy(model), layer) for layer in (1, 2))
    read: list[Tensor] = []
    for site in (one, two):
        with rewriting(model, site, lambda tensor: read.append(tensor) or tensor):
            model(**inputs)
    assert one.path == two.path
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    assert len(read) == 2
    assert torch.equal(read[0], hidden[1])
    assert torch.equal(read[1], hidden[2])


def test_an_edit_sees_rows_first_whatever_the_network_puts_there(checkpoint_of: Any) -> None:
    model, inputs = _loaded(checkpoint_of("xlnet"))
    shapes: list[torch.Size] = []
    for layer in (0, 1, 2):
        with rewriting(model, site_of_layer(anatomy(model), layer), lambda t: shapes.append(t.shape) or t.clone()):
            changed = model(**inputs).logits
        assert torch.equal(changed, model(**inputs).logits)
    assert [shape[:2] for shape in shapes] == 3 * [(5, 24)]


def test_of_what_a_layer_returns_the_first_is_edited_also_in_a_list(checkpoint_of: Any) -> None:
    model, inputs = _loaded(checkpoint_of("openai-gpt"))
    with rewriting(model, site_of_layer(anatomy(model), 1), lambda tensor: 0 * tensor):
        logits = model(**inputs).logits
    assert not torch.allclose(logits, model(**inputs).logits)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("bart", "its decoder reads each text again"), ("canine", "no table of input embeddings")],
)
def test_where_texts_pass_in_more_than_one_way_no_input_is_offered(checkpoint_of: Any, kind: str, message: str) -> None:
    parts = anatomy(_loaded(checkpoint_of(kind))[0])
    with pytest.raises(InputError, match=message):
        site_of_layer(parts, 0)


def test_layer_0_is_the_embeddings_and_layers_count_from_1(checkpoint: Any) -> None:
    parts = anatomy(_loaded(checkpoint("bert"))[0])
    assert site_of_layer(parts, 0) == Site("bert.embeddings.word_embeddings")
    assert site_of_layer(parts, 2) == Site("bert.encoder.layer.1")


@pytest.mark.parametrize("layer", [-1, 3, 99])
def test_a_layer_that_is_not_there_is_refused(checkpoint: Any, layer: int) -> None:
    parts = anatomy(_loaded(checkpoint("bert"))[0])
    with pytest.raises(InputError, match=f"no layer {layer} to mix at: it has 0 to 2"):
        site_of_layer(parts, layer)


def test_head_input_times_weight_plus_bias_is_the_logits(checkpoint: Any, architecture: str) -> None:
    model, inputs = _loaded(checkpoint(architecture))
    with head_input(model, anatomy(model)) as seen:
        logits = model(**inputs).logits
    head = head_of(model)
    features = pooled(seen[0], inputs, model.config)
    assert features.shape == (5, head.in_features)
    torch.testing.assert_close(nn.functional.linear(features, head.weight, head.bias), logits)


@pytest.mark.parametrize("kind", ["eurobert", "t5gemma", "t5gemma2", "gemma3", "bart", "xlnet"])
def test_where_the_head_sees_every_token_its_features_are_those_the_logits_are_made_of(
    checkpoint_of: Any, kind: str
) -> None:
    model, inputs = _loaded(checkpoint_of(kind))
    with head_input(model, anatomy(model)) as seen:
        logits = model(**inputs).logits
    torch.testing.assert_close(head_of(model)(pooled(seen[0], inputs, model.config)), logits)


def test_head_input_of_choices_gives_their_scores(checkpoint: Any, encoder: str) -> None:
    model, inputs = _loaded(checkpoint(encoder, choices=True), choices=True)
    with head_input(model, anatomy(model)) as seen:
        logits = model(**inputs).logits
    head = head_of(model)
    features = pooled(seen[0], inputs, model.config)
    torch.testing.assert_close(nn.functional.linear(features, head.weight, head.bias).view(5, 3), logits)


def test_head_input_collects_one_tensor_per_forward_and_then_no_more(checkpoint: Any) -> None:
    model, inputs = _loaded(checkpoint("bert"))
    with head_input(model, anatomy(model)) as seen:
        model(**inputs)
        model(**inputs)
    model(**inputs)
    assert len(seen) == 2


def test_the_last_token_is_the_rightmost_that_is_not_padding() -> None:
    ids = torch.tensor([[5, 6, 7, 0, 0], [5, 0, 7, 8, 9], [0, 0, 5, 6, 0], [0, 0, 0, 0, 0]])
    assert last_tokens(ids, 0).tolist() == [2, 4, 3, 0]
    assert last_tokens(ids, None).tolist() == [4, 4, 4, 4]
