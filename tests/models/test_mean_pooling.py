"""A layer that makes an ordinary classifier read the mean of all tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from calmix.models import (
    add_mean_pooling,
    anatomy,
    encode,
    load_for_training,
    load_trained,
    load_with_head,
    mean_pooling,
    predict_logits,
    save,
)

KNOWN = ("bert", "roberta", "distilbert", "electra")


def inputs_of(tokenizer: Any, n: int = 6) -> dict[str, Tensor]:
    packed = encode(tiny.examples(n), tokenizer, max_length=64)
    return packed.batch(torch.arange(n), width=int(packed.host_lengths.max()))


def states_of(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        base = getattr(model, model.base_model_prefix)
        return tuple(base(**inputs, output_hidden_states=True).hidden_states)


def relative(kind: str) -> Any:
    """Return a model whose code is RoBERTa's."""
    shape = {name: value for name, value in tiny.config("roberta").to_dict().items() if name != "model_type"}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, **shape)).eval()
    tiny.spread(model)
    return model


def check_mean(model: Any, inputs: dict[str, Tensor]) -> None:
    plain = states_of(model, inputs)
    assert add_mean_pooling(model)
    states = states_of(model, inputs)
    assert len(states) == len(plain) + 1
    shown = inputs["attention_mask"][..., None].bool()
    for one, other in zip(states[:-1], plain, strict=True):
        torch.testing.assert_close(one * shown, other * shown)
    assert not bool(shown.all())  # some rows are padded
    mean = (plain[-1] * shown).sum(1) / shown.sum(1)
    centred = mean - mean.mean(1, keepdim=True)
    normed = centred / centred.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(states[-1][:, 0], normed, atol=0.25, rtol=0.0)  # the first token itself is a twentieth
    cosine = nn.functional.cosine_similarity(states[-1][:, 0], centred, dim=1)
    assert float(cosine.min()) > 0.995


@pytest.mark.parametrize("architecture", KNOWN)
def test_the_first_tokens_state_is_the_centred_and_normed_mean_of_the_states_before(
    checkpoint: Any, architecture: str
) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    check_mean(model, inputs_of(tokenizer))


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
def test_so_it_is_of_relatives(kind: str) -> None:
    check_mean(relative(kind), inputs_of(tiny.tokenizer("roberta")))


@pytest.mark.parametrize("architecture", KNOWN)
def test_what_is_filled_in_after_a_text_does_not_matter(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    add_mean_pooling(model)
    packed = encode(tiny.examples(2), tokenizer, max_length=64)
    narrow = packed.batch(torch.tensor([0]), width=int(packed.host_lengths[0]))
    wide = packed.batch(torch.tensor([0]), width=40)
    torch.testing.assert_close(model(**narrow).logits, model(**wide).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", KNOWN)
def test_saved_it_is_an_ordinary_checkpoint(checkpoint: Any, architecture: str, tmp_path: Path) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    assert add_mean_pooling(model)
    inputs = inputs_of(tokenizer)
    save(model, tokenizer, tmp_path)
    plain, told = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    assert plain.config.num_hidden_layers == 3
    with torch.no_grad():
        torch.testing.assert_close(plain.eval()(**inputs).logits, model(**inputs).logits)
    again, _ = load_trained(tmp_path)
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("architecture", KNOWN)
def test_it_is_a_layer_like_the_others(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    before = anatomy(model).layers
    add_mean_pooling(model)
    layers = anatomy(model).layers
    assert layers[:2] == before
    assert len(layers) == model.config.num_hidden_layers == 3
    order: list[str] = []
    for path in layers:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: order.append(path))
    model(**inputs_of(tokenizer))
    assert order == list(layers)


@pytest.mark.parametrize("architecture", KNOWN)
def test_it_learns_and_its_keys_and_wide_part_do_as_soon_as_others_have(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    add_mean_pooling(model)
    layer = model.get_submodule(anatomy(model).layers[-1])
    names = next(
        parts for parts in mean_pooling._KNOWN if set(vars(parts).values()) <= dict(layer.named_modules()).keys()
    )
    inputs, labels = inputs_of(tokenizer), torch.arange(6) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    slopes = []
    for _ in range(2):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        slopes.append({name: float(p.grad.abs().max()) for name, p in layer.named_parameters() if p.grad is not None})
        optimizer.step()
    for part in (names.query, names.value, names.out, names.narrow, names.last_norm):
        assert slopes[0][f"{part}.weight"] > 1e-6, part
    asleep = {name for name, slope in slopes[0].items() if slope == 0}
    assert asleep
    assert all(slopes[1][name] > 0 for name in asleep if name.endswith("weight"))


@pytest.mark.parametrize("architecture", [*KNOWN, "mpnet"])
def test_nobody_watches_the_layers_afterwards(checkpoint: Any, architecture: str) -> None:
    model, _ = load_trained(checkpoint(architecture))
    add_mean_pooling(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_no_weight_is_shared_with_the_layer_it_was_made_from(checkpoint: Any) -> None:
    model, _ = load_trained(checkpoint("bert"))
    add_mean_pooling(model)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("training", [True, False])
def test_the_rest_of_the_model_stays_as_it_was(checkpoint: Any, training: bool) -> None:
    model, _ = load_trained(checkpoint("bert"))
    model.train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    add_mean_pooling(model)
    assert model.training is training
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def same_as_before(model: Any, before: dict[str, Tensor], config: dict[str, Any]) -> bool:
    after = model.state_dict()
    same = list(after) == list(before) and all(torch.equal(after[name], value) for name, value in before.items())
    return same and model.config.to_dict() == config


@pytest.mark.parametrize("architecture", ["deberta-v2", "modernbert", "mpnet", "llama"])
def test_other_architectures_are_left_exactly_as_they_were(checkpoint: Any, architecture: str) -> None:
    model, _ = load_trained(checkpoint(architecture))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    assert not add_mean_pooling(model)
    assert same_as_before(model, before, config)


@pytest.mark.parametrize(
    "kind", ["gpt2", "xlnet", "bart", "albert", "nystromformer", "longformer", "big_bird", "canine"]
)
def test_so_are_those_that_attend_in_another_way(checkpoint_of: Any, kind: str) -> None:
    model, _ = load_trained(checkpoint_of(kind))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    assert not add_mean_pooling(model)
    assert same_as_before(model, before, config)


def test_so_are_images(image_checkpoint: Any) -> None:
    model, _ = load_trained(image_checkpoint("vit"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    assert not add_mean_pooling(model)
    assert same_as_before(model, before, config)


def test_a_decoder_of_berts_kind_is_left_as_it_was(checkpoint: Any) -> None:
    model, _ = load_trained(checkpoint("bert"))
    model.config.is_decoder = True
    assert not add_mean_pooling(model)


@pytest.mark.parametrize("fault", [None, KeyError("something")])
def test_a_layer_that_does_something_else_is_taken_out_again(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    model, _ = load_trained(checkpoint("bert"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    forward = type(model.bert).forward

    def otherwise(self: Any, *args: Any, **options: Any) -> Any:
        if fault is not None:
            raise fault
        return forward(self, *args, **{**options, "attention_mask": None})

    monkeypatch.setattr(type(model.bert), "forward", otherwise)
    if fault is None:
        assert not add_mean_pooling(model)
    else:
        with pytest.raises(KeyError):
            add_mean_pooling(model)
    assert same_as_before(model, before, config)


def test_a_model_that_has_the_layer_gets_no_second_one(checkpoint: Any, tmp_path: Path) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    assert add_mean_pooling(model)
    assert add_mean_pooling(model)
    assert model.config.num_hidden_layers == 3
    with torch.no_grad():
        for parameter in model.parameters():  # it was trained since
            parameter.add_(0.1)
    save(model, tokenizer, tmp_path)
    again, _ = load_trained(tmp_path)
    assert add_mean_pooling(again)
    assert again.config.num_hidden_layers == 3
    other = load_with_head(str(tmp_path), label_names=("a", "b"), pooling="mean").model
    assert other.config.num_hidden_layers == 3


# ---- when it is loaded


@pytest.mark.parametrize("names", [("yes", "no", "maybe", "never"), ("a", "b", "c")])
def test_a_network_without_a_head_reads_as_it_is_asked_to(headless: Any, names: tuple[str, ...]) -> None:
    def layers(**options: Any) -> int:
        return len(anatomy(load_with_head(str(headless("bert")), label_names=names, **options).model).layers)

    assert layers(pooling="mean") == 3
    assert layers(pooling="first") == layers() == 2
    assert len(anatomy(load_for_training(str(headless("bert")), label_names=names)[0]).layers) == 2


@pytest.mark.parametrize("names", [tiny.LABELS, ("a", "b", "c"), ("yes", "no", "maybe", "never")])
def test_a_network_that_had_a_head_reads_as_it_was_trained_to(checkpoint: Any, names: tuple[str, ...]) -> None:
    loading = load_with_head(str(checkpoint("bert")), label_names=names, pooling="mean")
    assert loading.trained_head == (names == tiny.LABELS)
    assert len(anatomy(loading.model).layers) == 2


def test_predictions_are_the_same_however_they_are_batched(headless: Any) -> None:
    loading = load_with_head(str(headless("bert")), label_names=("a", "b"), pooling="mean")
    packed = encode(tiny.examples(12), loading.tokenizer, max_length=64)
    alone = predict_logits(loading.model, packed, tokens=1)
    np.testing.assert_allclose(predict_logits(loading.model, packed), alone, atol=1e-4)
