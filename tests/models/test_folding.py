"""A temperature inside the weights: the checkpoint is calibrated wherever it is loaded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
)

from calmix.errors import InputError
from calmix.models import (
    encode,
    fold,
    folded_temperature,
    head_of,
    load_for_training,
    load_trained,
    predict_logits,
    save,
)


def _softmax(logits: Any) -> Any:
    return torch.softmax(torch.as_tensor(logits, dtype=torch.float64), -1)


def test_a_folded_checkpoint_predicts_at_that_temperature_in_transformers_alone(
    checkpoint: Any, architecture: str, tmp_path: Path
) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    packed = encode(tiny.examples(12), tokenizer, max_length=64)
    before = predict_logits(model, packed)
    fold(model, 1.7)
    save(model, tokenizer, tmp_path / "folded")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "folded")
    after = predict_logits(plain, packed)
    torch.testing.assert_close(_softmax(after), _softmax(before / 1.7), atol=1e-6, rtol=1e-5)
    assert (after.argmax(1) == before.argmax(1)).all()
    assert folded_temperature(plain) == 1.7


def test_a_folded_multiple_choice_checkpoint_too(checkpoint: Any, encoder: str, tmp_path: Path) -> None:
    model, tokenizer = load_trained(checkpoint(encoder, choices=True))
    packed = encode(tiny.examples(6, kind="choices"), tokenizer, max_length=64)
    before = predict_logits(model, packed)
    fold(model, 0.6)
    save(model, tokenizer, tmp_path / "folded")
    after = predict_logits(AutoModelForMultipleChoice.from_pretrained(tmp_path / "folded"), packed)
    torch.testing.assert_close(_softmax(after), _softmax(before / 0.6), atol=1e-6, rtol=1e-5)


def test_folding_twice_multiplies_and_its_inverse_undoes_it(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(6), tokenizer, max_length=64)
    before = predict_logits(model, packed)
    assert folded_temperature(model) == 1.0
    fold(model, 2.0)
    fold(model, 3.0)
    assert folded_temperature(model) == 6.0
    np.testing.assert_allclose(predict_logits(model, packed), before / 6, atol=1e-6)
    fold(model, 1 / folded_temperature(model))
    assert folded_temperature(model) == 1.0
    np.testing.assert_allclose(predict_logits(model, packed), before, atol=1e-6)


def test_a_head_without_bias_is_folded(checkpoint: Any) -> None:
    model, _ = load_trained(checkpoint("llama"))
    assert head_of(model).bias is None
    weight = head_of(model).weight.detach().clone()
    fold(model, 4.0)
    torch.testing.assert_close(head_of(model).weight, weight / 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_model_becomes_float32_and_stays_so_when_it_is_loaded_again(
    checkpoint: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    _, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(60), tokenizer, max_length=64)
    half = AutoModelForSequenceClassification.from_pretrained(checkpoint("bert"), dtype=dtype).eval()
    body = {name: tensor.clone() for name, tensor in half.bert.state_dict().items()}
    wide = AutoModelForSequenceClassification.from_pretrained(checkpoint("bert"), dtype=dtype).float().eval()
    before = predict_logits(wide, packed)
    fold(half, 1.37)
    save(half, tokenizer, tmp_path / "folded")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "folded")
    assert json.loads((tmp_path / "folded" / "config.json").read_text())["dtype"] == "float32"
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
    assert all(torch.equal(tensor.to(dtype), body[name]) for name, tensor in again.bert.state_dict().items())
    after = predict_logits(again, packed)
    assert (after.argmax(1) == before.argmax(1)).all()
    np.testing.assert_allclose(after, before / 1.37, atol=1e-5)


def test_a_head_that_is_trained_anew_forgets_the_temperature(checkpoint: Any, tmp_path: Path) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    fold(model, 2.0)
    save(model, tokenizer, tmp_path / "folded")
    again, _ = load_for_training(str(tmp_path / "folded"), label_names=("a", "b"))
    assert folded_temperature(again) == 1.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(checkpoint: Any, temperature: float) -> None:
    model, _ = load_trained(checkpoint("bert"))
    weight = head_of(model).weight.detach().clone()
    with pytest.raises(InputError, match="must be a positive number"):
        fold(model, temperature)
    assert torch.equal(head_of(model).weight, weight)


def test_a_temperature_goes_into_networks_of_images_too(
    image_checkpoint: Any, image_architecture: str, tmp_path: Path
) -> None:
    from calmix.models import pack_images

    model, how = load_trained(image_checkpoint(image_architecture))
    pixels = pack_images(tiny.images(9), how)
    before = predict_logits(model, pixels)
    fold(model, 1.7)
    save(model, how, tmp_path / "folded")
    plain = AutoModelForImageClassification.from_pretrained(tmp_path / "folded")
    after = predict_logits(plain, pixels)
    torch.testing.assert_close(_softmax(after), _softmax(before / 1.7), atol=1e-6, rtol=1e-5)
    loaded, same_how = load_trained(tmp_path / "folded")
    assert folded_temperature(loaded) == pytest.approx(1.7)
    assert same_how == how
