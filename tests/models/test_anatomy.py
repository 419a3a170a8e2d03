"""Where the embeddings, layers and head are, in every architecture."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from calmix.errors import InputError
from calmix.models import anatomy, encode, head_of, load_trained, scale_head


def _inputs(tokenizer: Any, *, choices: bool = False) -> dict[str, torch.Tensor]:
    examples = tiny.examples(4, kind="choices" if choices else "pair", counts=(3,))
    packed = encode(examples, tokenizer, max_length=32)
    return packed.batch(torch.arange(4), width=24, choices=3 if choices else None)


def _outputs_of(model: nn.Module, path: str, inputs: dict[str, torch.Tensor]) -> tuple[list[Any], torch.Tensor]:
    seen: list[Any] = []
    handle = model.get_submodule(path).register_forward_hook(lambda _m, _a, output: seen.append(output))
    logits = model(**inputs).logits
    handle.remove()
    return seen, logits


def test_the_embeddings_turn_ids_into_vectors_once_a_forward(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    inputs = _inputs(tokenizer)
    seen, _ = _outputs_of(model, anatomy(model).embeddings, inputs)
    table = model.get_submodule(anatomy(model).embeddings).weight
    assert len(seen) == 1
    assert torch.equal(seen[0], table[inputs["input_ids"]])


def test_there_are_as_many_layers_as_the_config_says_first_to_last(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture, layers=3))
    layers = anatomy(model).layers
    order: list[str] = []
    for path in layers:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: order.append(path))
    model(**_inputs(tokenizer))
    assert len(layers) == 3
    assert order == list(layers)


def test_the_head_writes_the_logits(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    (written,), logits = _outputs_of(model, anatomy(model).head, _inputs(tokenizer))
    rows = written.reshape(4, -1, written.shape[-1])
    assert all((rows[i] == logits[i]).all(-1).any() for i in range(4))
    assert head_of(model).out_features == 3


def test_the_head_writes_the_scores_of_choices(checkpoint: Any, encoder: str) -> None:
    model, tokenizer = load_trained(checkpoint(encoder, choices=True))
    (written,), logits = _outputs_of(model, anatomy(model).head, _inputs(tokenizer, choices=True))
    assert torch.equal(written.view(4, 3), logits)


@pytest.mark.parametrize("choices", [False, True])
def test_the_inner_dense_layer_reads_one_vector_per_sequence(checkpoint: Any, encoder: str, choices: bool) -> None:
    model, tokenizer = load_trained(checkpoint(encoder, choices=choices))
    inner = anatomy(model).inner
    assert inner is not None
    (written,), _ = _outputs_of(model, inner, _inputs(tokenizer, choices=choices))
    assert written.shape == (12 if choices else 4, tiny.WIDTH)


def test_a_decoder_has_no_inner_layer(checkpoint: Any) -> None:
    model, _ = load_trained(checkpoint("llama"))
    assert anatomy(model).inner is None


def test_a_module_that_serves_as_several_layers_is_named_for_each(tmp_path: Path) -> None:
    from transformers import AlbertConfig, AlbertForSequenceClassification

    config = AlbertConfig(
        vocab_size=20,
        embedding_size=8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_hidden_groups=2,
        num_attention_heads=2,
    )
    model = AlbertForSequenceClassification(config)
    parts = anatomy(model)
    order: list[str] = []
    for path in set(parts.layers):
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: order.append(path))
    model(torch.arange(6).view(2, 3))
    assert [path.rpartition(".")[2] for path in parts.layers] == ["0", "0", "1"]
    assert order == list(parts.layers)
    assert parts.head == "classifier"
    assert parts.inner == "albert.pooler"


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("gemma3", "model.language_model.layers.1"),  # its vision tower has as many
        ("xlm", "transformer.layer_norm2.1"),  # not the attention, which comes before the residual
        ("modernvbert", "model.text_model.layers.1"),
    ],
)
def test_the_layers_are_those_of_the_texts_and_whole(checkpoint_of: Any, kind: str, last: str) -> None:
    parts = anatomy(load_trained(checkpoint_of(kind))[0])
    assert len(parts.layers) == 2
    assert parts.layers[-1] == last


def test_a_network_without_a_table_of_embeddings_is_loaded_all_the_same(checkpoint_of: Any) -> None:
    assert anatomy(load_trained(checkpoint_of("canine"))[0]).embeddings == ""


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2))])
def test_a_module_without_an_encoder_is_refused(model: nn.Module) -> None:
    with pytest.raises(InputError, match="not a transformers classifier"):
        anatomy(model)


def test_a_model_without_a_head_is_refused() -> None:
    from transformers import AutoModel, AutoModelForTokenClassification

    headless = AutoModelForTokenClassification.from_config(tiny.config("bert"))
    headless.classifier = nn.Identity()
    with pytest.raises(InputError, match="no linear layer after its encoder"):
        anatomy(headless)
    with pytest.raises(InputError, match="not a transformers classifier"):
        anatomy(AutoModel.from_config(tiny.config("bert")))


def test_networks_of_images_have_stages_or_layers_and_a_head_that_reads_what_was_pooled(
    image_checkpoint: Any, image_architecture: str
) -> None:
    model, _ = load_trained(image_checkpoint(image_architecture))
    parts = anatomy(model)
    order: list[str] = []
    read: list[torch.Tensor] = []
    for path in parts.layers:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: order.append(path))
    head_of(model).register_forward_pre_hook(lambda _module, args: read.append(args[0]))
    logits = model(torch.randn(2, 3, tiny.SIDE, tiny.SIDE)).logits
    assert (len(parts.layers), order) == (2, list(parts.layers))
    assert parts.embeddings == ""
    assert read[0].shape == (2, 16)
    assert torch.equal(head_of(model)(read[0]), logits)


def test_the_head_is_scaled_with_its_bias_and_nothing_else(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    inputs = _inputs(tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = model(**inputs).logits.detach()
    scale_head(model, 3.0)
    torch.testing.assert_close(model(**inputs).logits, 3 * logits)
    head = anatomy(model).head
    for name, value in model.state_dict().items():
        assert torch.equal(value, 3 * before[name] if name.startswith(f"{head}.") else before[name]), name


@pytest.mark.parametrize("factor", [0.125, 2.0**-5])
def test_a_power_of_two_is_exactly_undone(checkpoint: Any, architecture: str, factor: float) -> None:
    model, _ = load_trained(checkpoint(architecture))
    before = head_of(model).weight.detach().clone()
    scale_head(model, factor)
    assert torch.equal(head_of(model).weight, factor * before)
    scale_head(model, 1 / factor)
    assert torch.equal(head_of(model).weight, before)
