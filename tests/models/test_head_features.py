"""What a head reads of many rows, and a layer before it that imitates the mean of all tokens."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from calmix.models import (
    Packed,
    anatomy,
    encode,
    hastening,
    head_features,
    head_of,
    load_trained,
    pack_images,
    predict_logits,
    predicting,
)
from calmix.models.head_features import Seen, inner_layer, watching

ALONE = ("bert", "roberta", "distilbert", "electra", "deberta-v2", "mpnet")
"""Those whose head reads what a dense layer wrote, through an activation alone."""


def seen_in(model: nn.Module, packed: Any, rows: Any = None, *, inner: bool = False) -> tuple[Seen, Any]:
    rows = np.arange(len(packed)) if rows is None else rows
    with watching(model, anatomy(model), inner=inner) as watch:
        return watch.look(packed, rows, "fp32", None), watch.activation


def loaded(folder: Any, n: int = 40, kind: str = "text") -> tuple[nn.Module, Packed]:
    model, tokenizer = load_trained(folder)
    return model, encode(tiny.examples(n, kind=kind), tokenizer, max_length=64)


def written(model: nn.Module, features: Tensor) -> np.ndarray:
    return np.asarray(head_of(model)(features).detach())


def test_it_is_what_the_logits_are_made_of_row_by_row(checkpoint: Any, architecture: str) -> None:
    model, packed = loaded(checkpoint(architecture))
    rows = np.array([31, 2, 17, 5, 5])
    seen, _ = seen_in(model, packed, rows)
    np.testing.assert_allclose(written(model, seen.features), predict_logits(model, packed, rows=rows), atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "xlnet", "bart", "t5gemma", "eurobert"])
def test_so_it_is_where_every_token_is_scored_or_the_text_is_read_otherwise(checkpoint_of: Any, kind: str) -> None:
    model, packed = loaded(checkpoint_of(kind), 9)
    seen, _ = seen_in(model, packed)
    np.testing.assert_allclose(written(model, seen.features), predict_logits(model, packed), rtol=1e-4, atol=1e-4)


def test_the_choices_of_a_row_come_one_after_the_other(checkpoint: Any, encoder: str) -> None:
    model, packed = loaded(checkpoint(encoder, choices=True), 12, "choices")
    rows = np.array([7, 0, 3])
    assert packed.counts is not None
    seen, _ = seen_in(model, packed, rows)
    expected = predict_logits(model, packed, rows=rows)
    found = np.split(written(model, seen.features)[:, 0], packed.counts[rows].cumsum()[:-1])
    for row, logits in zip(expected, found, strict=True):
        np.testing.assert_allclose(row[: len(logits)], logits, atol=1e-4)
        assert np.isneginf(row[len(logits) :]).all()


def test_of_images_it_is_what_was_pooled(image_checkpoint: Any, image_architecture: str) -> None:
    model, how = load_trained(image_checkpoint(image_architecture))
    pixels = pack_images(tiny.images(9), how)
    seen, _ = seen_in(model, pixels)
    np.testing.assert_allclose(written(model, seen.features), predict_logits(model, pixels), atol=1e-4)


@pytest.mark.parametrize("architecture", ["roberta", "distilbert"])
def test_what_is_kept_is_a_vector_for_each_row_and_no_view_of_all_its_tokens(
    checkpoint: Any, architecture: str
) -> None:
    model, packed = loaded(checkpoint(architecture))
    seen, _ = seen_in(model, packed, inner=True)
    for kept in (seen.features, seen.before, seen.means):
        assert kept is not None
        assert kept.untyped_storage().nbytes() == 4 * 40 * tiny.WIDTH


def test_an_image_network_without_a_pooler_is_not_kept_as_a_view_either(image_checkpoint: Any) -> None:
    model, how = load_trained(image_checkpoint("vit"))
    seen, _ = seen_in(model, pack_images(tiny.images(9), how))
    assert seen.features.untyped_storage().nbytes() == 4 * 9 * 16


def test_of_many_classes_the_logits_of_some_rows_at_a_time_are_computed(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, packed = loaded(checkpoint("bert"))
    whole, _ = seen_in(model, packed, inner=True)
    sizes = []
    predict = head_features.predict_logits

    def counted(model: nn.Module, packed: Any, *, rows: np.ndarray, **options: Any) -> np.ndarray:
        sizes.append(len(rows))
        return predict(model, packed, rows=rows, **options)

    monkeypatch.setattr(head_features, "predict_logits", counted)
    monkeypatch.setattr(head_features, "_AT_ONCE", 7)
    monkeypatch.setattr(head_features, "_LOGITS", 50)
    pieces, _ = seen_in(model, packed, inner=True)
    assert sizes == [16, 16, 8]  # of three classes
    for one, other in zip(vars(whole).values(), vars(pieces).values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_nothing_of_it_stays_in_the_network(checkpoint: Any) -> None:
    model, packed = loaded(checkpoint("bert"))
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen_in(model, packed, inner=True)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# ---- the layer before the head


@pytest.mark.parametrize("architecture", ALONE)
def test_what_the_inner_layer_reads_and_the_mean_of_the_last_states_are_seen(
    checkpoint: Any, architecture: str
) -> None:
    model, packed = loaded(checkpoint(architecture))
    seen, activation = seen_in(model, packed, inner=True)
    layer = model.get_submodule(str(anatomy(model).inner))
    assert seen.before is not None
    assert seen.means is not None
    torch.testing.assert_close(activation(layer(seen.before)), seen.features, atol=1e-4, rtol=1e-4)
    base = getattr(model, model.base_model_prefix)
    for row in (0, 13):
        width = int(packed.host_lengths[row])
        states = base(**packed.batch(torch.tensor([row]), width=width))[0][0].detach()
        mean = states.mean(0)
        torch.testing.assert_close(seen.means[row], mean / mean.norm(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "expected"), [("bert", "tanh"), ("distilbert", "relu"), ("electra", "gelu"), ("mpnet", "tanh")]
)
def test_the_activation_is_the_networks(checkpoint: Any, architecture: str, expected: str) -> None:
    model, packed = loaded(checkpoint(architecture))
    assert seen_in(model, packed, inner=True)[1].__name__ == expected


def test_activations_that_are_alike_for_small_values_are_told_apart(checkpoint: Any) -> None:
    model, packed = loaded(checkpoint("electra"))
    with torch.no_grad():
        model.classifier.dense.weight.mul_(0.01)
        model.classifier.dense.bias.mul_(0.01)
    model.classifier.activation = nn.SiLU()
    assert seen_in(model, packed, inner=True)[1].__name__ == "silu"


@pytest.mark.parametrize("architecture", ["modernbert", "llama"])
def test_where_something_else_stands_between_or_there_is_no_such_layer_none_is_seen(
    checkpoint: Any, architecture: str
) -> None:
    model, packed = loaded(checkpoint(architecture))
    seen, activation = seen_in(model, packed, inner=True)
    assert (seen.before, seen.means, activation) == (None, None, None)
    assert inner_layer([seen], activation) is None


def test_a_layer_without_a_bias_or_of_another_width_is_left_alone(checkpoint: Any) -> None:
    model, packed = loaded(checkpoint("roberta"))
    model.classifier.dense.bias = None
    assert seen_in(model, packed, inner=True)[0].before is None
    model, packed = loaded(checkpoint("roberta"))
    model.classifier.dense, model.classifier.out_proj = nn.Linear(tiny.WIDTH, 5), nn.Linear(5, 3)
    assert seen_in(model, packed, inner=True)[0].before is None


@pytest.fixture
def tried_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few tokens there are, the network is tried in another way first."""
    monkeypatch.setattr(predicting, "_MANY", 0)
    monkeypatch.setattr(hastening, "_TRIED", {})
    return


@pytest.mark.usefixtures("tried_anew")
def test_forwards_that_only_try_the_network_are_not_taken_for_rows(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, packed = loaded(checkpoint("bert"))
    first, activation = seen_in(model, packed, inner=True)
    assert activation is torch.tanh
    assert {type(model): True} == hastening._TRIED
    monkeypatch.setattr(predicting, "_MANY", 10**9)
    plain, _ = seen_in(model, packed, inner=True)
    for one, other in zip(vars(first).values(), vars(plain).values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ALONE)
def test_set_anew_it_is_nearer_to_the_mean_than_any_constant_and_the_head_reads_just_that(
    checkpoint: Any, architecture: str
) -> None:
    model, packed = loaded(checkpoint(architecture), 200)
    seen, activation = seen_in(model, packed, inner=True)
    inner = inner_layer([seen], activation)
    assert inner is not None
    assert seen.means is not None
    layer = model.get_submodule(str(anatomy(model).inner))
    with torch.no_grad():
        layer.weight.copy_(inner.weight)  # type: ignore[operator,union-attr]
        layer.bias.copy_(inner.bias)  # type: ignore[operator,union-attr]
        again, _ = seen_in(model, packed)
        torch.testing.assert_close(inner.applied(seen).features, again.features, atol=1e-4, rtol=1e-3)
        imitated = layer(seen.before)
    centred = seen.means - seen.means.mean(0)
    error = (imitated - imitated.mean(0) - centred).square().sum()
    assert float(error) < 0.7 * float(centred.square().sum())


def test_through_relu_the_whole_mean_passes_none_of_it_below_zero(checkpoint: Any) -> None:
    model, packed = loaded(checkpoint("distilbert"), 100)
    seen, activation = seen_in(model, packed, inner=True)
    inner = inner_layer([seen], activation)
    assert inner is not None
    passed = (inner.applied(seen).features > 0).float()
    assert float(passed.mean()) > 0.97
