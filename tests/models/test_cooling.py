"""Logits that shrink with the distance from the training data: by how much, for whom, and how it is kept."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import (
    Beside,
    Classifier,
    Cooling,
    encode,
    head_of,
    load,
    load_trained,
    predict_logits,
    read_beside,
    write_beside,
)
from calmix.models.cooling import cooled, rewriting_logits


def some(features: int, *, slope: float = 0.5, centres: int = 2) -> Cooling:
    draw = torch.Generator().manual_seed(0)
    return Cooling(
        slope,
        torch.randn(centres, features, generator=draw),
        torch.eye(features) + 0.1 * torch.randn(features, features, generator=draw),
        (1.0, 0.5),
    )


def packed_of(folder: Path, examples: Examples) -> tuple[Any, Any]:
    model, tokenizer = load_trained(folder)
    return model, encode(examples, tokenizer, max_length=tiny.POSITIONS)


def test_the_distance_is_from_the_nearest_class_in_deviations() -> None:
    cooling = Cooling(0.5, torch.tensor([[0.0, 0.0], [4.0, 0.0]]), torch.eye(2), (1.0, 2.0))
    features = torch.tensor([[0.0, 1.0], [4.0, 5.0], [0.0, -3.0], [0.0, 1e6], [4.0, 0.0]])[:, None]
    torch.testing.assert_close(cooling.distances(features)[[0, 1, 2, 4]], torch.tensor([0.0, 2.0, 1.0, -0.5]))
    # Near the data one is surer, and there is an end to it.
    expected = torch.exp(-0.5 * torch.tensor([0.0, 2.0, 1.0, 4.0, -0.5]))
    torch.testing.assert_close(cooling(torch.ones(5, 2), features), expected[:, None].expand(-1, 2))


def test_logits_are_divided_row_by_row_and_classes_keep_their_order(architecture: str, checkpoint: Any) -> None:
    model, packed = packed_of(checkpoint(architecture), tiny.examples(9))
    cooling = some(head_of(model).in_features)
    plain, cold = predict_logits(model, packed), predict_logits(model, packed, cooling=cooling)
    ratio = plain / cold
    np.testing.assert_allclose(ratio, np.repeat(ratio[:, :1], 3, axis=1), rtol=1e-3)
    assert (ratio > 1.01).any()
    np.testing.assert_array_equal(plain.argmax(1), cold.argmax(1))
    np.testing.assert_array_equal(plain, predict_logits(model, packed))  # nothing is left behind


def test_what_the_head_read_can_be_had_instead_of_logits(checkpoint: Any) -> None:
    model, packed = packed_of(checkpoint("bert"), tiny.examples(4))
    with rewriting_logits(model, lambda _logits, features: features[:, 0]):
        features = torch.from_numpy(predict_logits(model, packed))
    logits = torch.nn.functional.linear(features, head_of(model).weight, head_of(model).bias)
    torch.testing.assert_close(logits.detach(), torch.from_numpy(predict_logits(model, packed)))


def test_batches_of_any_size_are_cooled_alike(checkpoint: Any) -> None:
    model, packed = packed_of(checkpoint("bert"), tiny.examples(9))
    cooling = some(head_of(model).in_features)
    one = predict_logits(model, packed, tokens=1, cooling=cooling)
    np.testing.assert_allclose(one, predict_logits(model, packed, tokens=10_000, cooling=cooling), atol=1e-5)


def test_a_row_of_choices_has_one_temperature(checkpoint: Any) -> None:
    model, packed = packed_of(checkpoint("bert", choices=True), tiny.examples(6, kind="choices", counts=(2, 3)))
    plain = predict_logits(model, packed)
    with np.errstate(invalid="ignore"):  # a choice that is not there
        ratio = plain / predict_logits(model, packed, cooling=some(head_of(model).in_features))
    for row, count in enumerate(packed.counts):
        np.testing.assert_allclose(ratio[row, :count], ratio[row, 0], rtol=1e-3)
    assert np.isinf(plain).sum() == np.isnan(ratio).sum()


def test_without_a_correction_nothing_happens(checkpoint: Any) -> None:
    model, packed = packed_of(checkpoint("bert"), tiny.examples(3))
    with cooled(model, None):
        found = predict_logits(model, packed)
    np.testing.assert_array_equal(found, predict_logits(model, packed))


def test_it_is_kept_beside_the_model_and_applied_when_loaded(checkpoint: Any, tmp_path: Path) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    cooling = some(head_of(model).in_features)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write_beside(tmp_path, Beside(cooling=cooling))
    back = read_beside(tmp_path).cooling
    assert back is not None
    assert back.to_json() == cooling.to_json()
    assert torch.equal(back.whiten, cooling.whiten)
    loaded, examples = load(tmp_path), tiny.examples(5)
    assert isinstance(loaded, Classifier)
    plain = Classifier(model, tokenizer, loaded.label_names)
    expected = predict_logits(model, plain.encode(examples), cooling=cooling)
    np.testing.assert_allclose(loaded.logits(examples), expected, atol=1e-5)
    assert loaded.probabilities(examples).max(1).mean() < plain.probabilities(examples).max(1).mean()
    write_beside(tmp_path, Beside())
    assert not (tmp_path / "calmix.safetensors").exists()


def test_its_file_is_as_readable_as_the_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_beside(tmp_path, Beside(cooling=some(4)))
    finally:
        os.umask(before)
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {
        "calmix.json": "0o644",
        "calmix.safetensors": "0o644",
    }


def test_a_damaged_file_is_said_in_one_line(tmp_path: Path) -> None:
    write_beside(tmp_path, Beside(cooling=some(4)))
    (tmp_path / "calmix.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="is damaged"):
        read_beside(tmp_path)


def test_confidence_never_rises_with_the_distance() -> None:
    with pytest.raises(InputError, match="must not rise"):
        some(4, slope=-1.0)
