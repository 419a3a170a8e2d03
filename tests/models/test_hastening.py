"""Encoders that predict faster on a processor."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from calmix.models import add_mean_pooling, encode, hastening, load_trained, predict_logits, predicting
from calmix.models.dropping import Dropout


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Any number of tokens is enough; told how many layers were changed each time."""
    told: list[int] = []
    changed = hastening._changed

    def watched(layers: Any, **options: Any) -> Any:
        told.append(len(layers))
        return changed(layers, **options)

    monkeypatch.setattr(predicting, "_MANY", 0)
    monkeypatch.setattr(hastening, "_TRIED", {})
    monkeypatch.setattr(hastening, "_changed", watched)
    return told


def ordinary(model: Any, packed: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(predicting, "_MANY", 10**9)
        return predict_logits(model, packed, tokens=150)


@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
def test_logits_are_the_same_but_for_rounding(
    checkpoint: Any, encoder: str, kind: str, monkeypatch: pytest.MonkeyPatch, always: list[int]
) -> None:
    model, tokenizer = load_trained(checkpoint(encoder, choices=kind == "choices"))
    packed = encode(tiny.examples(20, kind=kind), tokenizer, max_length=64)
    expected = ordinary(model, packed, monkeypatch)
    np.testing.assert_allclose(predict_logits(model, packed, tokens=150), expected, atol=1e-5)
    known = model.config.model_type in hastening._KINDS
    assert always == ([2, 2] if known else [0])  # tried, and done
    assert not any("forward" in vars(module) for module in model.modules())
    again = predict_logits(model, packed, tokens=150)
    np.testing.assert_allclose(again, expected, atol=1e-5)
    assert always[-1] == (2 if known else 0)


@pytest.mark.parametrize("kind", ["camembert", "xlm-roberta"])
def test_so_are_those_of_relatives(
    checkpoint: Any, kind: str, monkeypatch: pytest.MonkeyPatch, always: list[int]
) -> None:
    relative, tokenizer = load_trained(checkpoint("roberta"))
    shape = {name: value for name, value in relative.config.to_dict().items() if name != "model_type"}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, **shape)).eval()
    tiny.spread(model)
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    expected = ordinary(model, packed, monkeypatch)
    np.testing.assert_allclose(predict_logits(model, packed, tokens=150), expected, atol=1e-5)
    assert always == [2, 2]


def test_an_activation_that_is_no_gelu_is_applied_as_it_is(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    for layer in model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.SiLU()
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    expected = ordinary(model, packed, monkeypatch)
    np.testing.assert_allclose(predict_logits(model, packed, tokens=150), expected, atol=1e-5)


def test_a_model_in_lower_precision_is_left_as_it_is(checkpoint: Any, always: list[int]) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    predict_logits(model, packed)
    with torch.autocast("cpu", torch.bfloat16):
        around = predict_logits(model, packed)
    # As accelerate does it: after a model of its kind was found to agree.
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    np.testing.assert_array_equal(predict_logits(model, packed), around)
    assert always == [2, 2, 0, 0]


def test_a_model_that_would_say_something_else_is_left_as_it_is(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, always: list[int]
) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    for layer in model.bert.encoder.layer:
        layer.attention.self.scaling = 2.0  # as if it were computed in another way
        monkeypatch.setattr(type(layer), "feed_forward_chunk", lambda self, x: self.output(self.intermediate(x), 2 * x))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    expected = ordinary(model, packed, monkeypatch)
    np.testing.assert_array_equal(predict_logits(model, packed, tokens=150), expected)
    assert always == [2, 0]


@pytest.mark.parametrize("why", ["hook", "bf16", "dropout", "eager"])
def test_who_asks_for_something_else_gets_it(checkpoint: Any, always: list[int], why: str) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    if why == "hook":
        seen: list[int] = []
        layer = model.bert.encoder.layer[-1]
        layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape[1]))
        predict_logits(model, packed)
        assert min(seen) > 1
    elif why == "eager":
        model.set_attn_implementation("eager")
        predict_logits(model, packed)
    elif why == "bf16":
        predict_logits(model, packed, precision="bf16")
    else:
        predict_logits(model, packed, dropout=Dropout(passes=2))
    assert set(always) <= {0}


def test_a_processor_without_these_operations_predicts_as_it_can(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, always: list[int]
) -> None:
    def missing(*_: Any) -> Any:
        raise NotImplementedError("no such operation here")

    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    expected = ordinary(model, packed, monkeypatch)
    monkeypatch.setattr(hastening, "_multiplied", missing)
    np.testing.assert_array_equal(predict_logits(model, packed, tokens=150), expected)
    assert always == [2, 0]


def collected(model: Any, packed: Any) -> tuple[Any, dict[int, torch.Tensor]]:
    """Return the logits, and of each row the last hidden states that a visitor finds."""
    states: list[torch.Tensor] = []
    found: dict[int, torch.Tensor] = {}
    base = getattr(model, model.base_model_prefix)
    handle = base.register_forward_hook(lambda _module, _args, out: states.append(out[0].clone()))

    def visit(places: Any, inputs: dict[str, torch.Tensor]) -> None:
        lengths = inputs["attention_mask"].sum(1).tolist()
        for place, length, own in zip(places, lengths, states[-1], strict=True):
            found[int(place)] = own[:length]

    logits = predict_logits(model, packed, tokens=150, visit=visit)
    handle.remove()
    return logits, found


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra"])
def test_who_visits_finds_the_last_state_of_every_token(
    checkpoint: Any, architecture: str, monkeypatch: pytest.MonkeyPatch, always: list[int]
) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    logits, found = collected(model, packed)
    assert always == [2, 2]
    monkeypatch.setattr(predicting, "_MANY", 10**9)
    plain, expected = collected(model, packed)
    np.testing.assert_allclose(logits, plain, atol=1e-5)
    assert found.keys() == expected.keys() == set(range(20))
    for row, states in expected.items():
        torch.testing.assert_close(found[row], states, atol=1e-4, rtol=1e-4)


def test_nobody_else_pays_for_them(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    widths: list[int] = []
    model.bert.register_forward_hook(lambda _module, _args, out: widths.append(out[0].shape[1]))
    predict_logits(model, packed)
    assert widths[-1] == 1


def test_a_layer_that_was_added_is_one_of_those_that_are_faster(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, always: list[int]
) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    assert add_mean_pooling(model)
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    expected = ordinary(model, packed, monkeypatch)
    np.testing.assert_allclose(predict_logits(model, packed, tokens=150), expected, atol=1e-4)
    assert always == [3, 3]
