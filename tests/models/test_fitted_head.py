"""A head fitted to what it reads, and made small."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from memory import Largest
from torch import nn

from calmix.data import Examples, fold_examples
from calmix.models import (
    FACTOR,
    Packed,
    anatomy,
    encode,
    fit_head_to,
    fitted_head,
    head_of,
    load_trained,
    logistic_regression,
    pack_images,
    predict_logits,
    scale_head,
)


def loaded(folder: Any, n: int = 90, kind: str = "text") -> tuple[nn.Module, Packed, torch.Tensor]:
    model, tokenizer = load_trained(folder)
    examples = tiny.examples(n, kind=kind)
    return model, encode(examples, tokenizer, max_length=64), torch.from_numpy(examples.labels)


def check_put_into(model: nn.Module, packed: Any, labels: torch.Tensor, *, set_inner: bool = False) -> Any:
    """With the head at full size the network says what the regression says; its other weights are as they were."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fitted = fit_head_to(model, packed, labels, dev=(packed, labels.numpy()), set_inner=set_inner)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fitted.put_into(model, 1.0)
    logits = predict_logits(model, packed)
    assert fitted.dev_logits is not None
    shown = np.isfinite(fitted.dev_logits)
    assert np.array_equal(shown, np.isfinite(logits))
    np.testing.assert_allclose(logits[shown], fitted.dev_logits[shown], rtol=1e-3, atol=1e-3)
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed <= fitted.weights.keys()
    assert f"{anatomy(model).head}.weight" in changed
    return fitted


def test_at_full_size_the_network_says_what_the_regression_said(checkpoint: Any, architecture: str) -> None:
    model, packed, labels = loaded(checkpoint(architecture))
    check_put_into(model, packed, labels)
    right = (predict_logits(model, packed).argmax(1) == labels.numpy()).mean()
    assert right > 0.5  # by chance a third


@pytest.mark.parametrize("kind", ["gpt2", "xlnet", "bart", "eurobert"])
def test_so_it_does_where_a_text_is_read_in_another_way(checkpoint_of: Any, kind: str) -> None:
    model, packed, labels = loaded(checkpoint_of(kind))
    check_put_into(model, packed, labels)


def test_so_it_does_where_there_are_choices(checkpoint: Any, encoder: str) -> None:
    model, packed, labels = loaded(checkpoint(encoder, choices=True), kind="choices")
    check_put_into(model, packed, labels)


def test_so_it_does_of_images(image_checkpoint: Any, image_architecture: str) -> None:
    model, how = load_trained(image_checkpoint(image_architecture))
    examples = tiny.images(60)
    check_put_into(model, pack_images(examples, how), torch.from_numpy(examples.labels))


@pytest.mark.parametrize(
    ("architecture", "inner"),
    [
        ("bert", "bert.pooler.dense"),
        ("roberta", "classifier.dense"),
        ("electra", "classifier.dense"),
        ("distilbert", "pre_classifier"),
        ("mpnet", "classifier.dense"),
        ("deberta-v2", "pooler.dense"),
        ("modernbert", None),
        ("llama", None),
    ],
)
def test_the_inner_layer_is_set_where_an_activation_alone_stands_between(
    checkpoint: Any, architecture: str, inner: str | None
) -> None:
    model, packed, labels = loaded(checkpoint(architecture))
    fitted = check_put_into(model, packed, labels, set_inner=True)
    head = {f"{anatomy(model).head}.{name}" for name, _ in head_of(model).named_parameters()}
    assert fitted.weights.keys() - head == ({f"{inner}.weight", f"{inner}.bias"} if inner else set())


def test_a_head_without_a_bias_gets_none(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("llama"))
    assert fit_head_to(model, packed, labels).weights.keys() == {"score.weight"}


@pytest.mark.parametrize("set_inner", [True, False])
def test_made_small_it_is_exactly_undone(checkpoint: Any, set_inner: bool) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    fitted = fit_head_to(model, packed, labels, set_inner=set_inner)
    fitted.put_into(model, FACTOR)
    small = head_of(model).weight.detach().clone()
    scale_head(model, 1 / FACTOR)
    assert 1 / FACTOR == 8
    for name, parameter in model.named_parameters():
        if name in fitted.weights:
            assert torch.equal(parameter, fitted.weights[name]), name
    assert torch.equal(small * 8, head_of(model).weight)


def test_two_fits_are_the_same_bit_by_bit(checkpoint: Any) -> None:
    fits = [fit_head_to(*loaded(checkpoint("roberta")), set_inner=True) for _ in range(2)]
    for name, value in fits[0].weights.items():
        assert torch.equal(value, fits[1].weights[name])


def test_it_can_be_sent_to_others(checkpoint: Any) -> None:
    fitted = fit_head_to(*loaded(checkpoint("bert")))
    sent = fitted.on_cpu()
    assert all(value.device.type == "cpu" for value in sent.weights.values())
    assert (sent.rows, sent.strength) == (fitted.rows, fitted.strength)


def test_progress_tells_of_every_row_that_is_looked_at(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"), 30)
    told: list[int] = []
    fit_head_to(model, packed, labels, dev=(packed, labels.numpy()), progress=told.append)
    assert sum(told) == 60


# ---- what it is fitted to


def test_rows_without_a_label_teach_nothing(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    known = torch.where(torch.arange(90) < 60, labels, -1)
    few = loaded(checkpoint("bert"), 60)
    beside, alone = fit_head_to(model, packed, known), fit_head_to(*few)
    assert beside.rows == alone.rows == 60
    for name, value in alone.weights.items():
        torch.testing.assert_close(beside.weights[name], value, atol=1e-3, rtol=1e-3)


def test_distributions_teach_as_labels_do_where_they_are_sure(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    weights = torch.tensor([1.0, 0.5, 2.0])
    sure = nn.functional.one_hot(labels, 3).float()
    dev = (packed, labels.numpy())
    one = fit_head_to(model, packed, labels, class_weights=weights, dev=dev)
    other = fit_head_to(model, packed, sure, class_weights=weights, dev=dev)
    np.testing.assert_allclose(one.dev_logits, other.dev_logits, atol=1e-2)


def test_a_class_that_counts_more_is_said_more_often(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    noisy = labels[torch.randperm(90, generator=torch.Generator().manual_seed(0))]
    dev = (packed, labels.numpy())
    said = [
        fit_head_to(model, packed, noisy, dev=dev, class_weights=torch.tensor([weight, 1.0, 1.0])).dev_logits
        for weight in (0.2, 5.0)
    ]
    less, more = ((np.asarray(logits).argmax(1) == 0).sum() for logits in said)
    assert less < more


def test_of_very_many_rows_a_share_of_each_label_is_looked_at(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    labels = torch.where(labels == 2, 1, labels)
    labels[17] = 2  # a rare one
    labels[80:] = -1
    monkeypatch.setattr(fitted_head, "_MOST", 20)
    told: list[int] = []
    fitted = fit_head_to(model, packed, labels, progress=told.append)
    assert fitted.rows == sum(told)
    assert 20 <= fitted.rows <= 21
    rows = fitted_head._subset(labels, None)
    assert np.array_equal(rows, np.unique(rows))
    found = np.bincount(labels[torch.from_numpy(rows)].numpy(), minlength=3)
    assert found[2] == 1
    assert abs(found[0] / found[1] - int((labels == 0).sum()) / int((labels == 1).sum())) < 0.15
    assert rows[found[0]] > 20  # from everywhere in the table


def test_of_choices_the_bound_is_on_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted_head, "_MOST", 30)
    rows = fitted_head._subset(torch.arange(100) % 2, np.full(100, 3))
    assert len(rows) == 10


def test_memory_is_bounded_by_rows_times_width_and_classes_times_width(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logistic_regression, "_CHUNK_ON_CPU", 2**15)
    model, tokenizer = load_trained(checkpoint("bert", classes=1000))
    packed = encode(tiny.examples(600), tokenizer, max_length=64)
    labels = torch.arange(600) % 1000
    with Largest() as largest:
        fitted = fit_head_to(model, packed, labels, set_inner=True)
    assert largest.size < 150 * 1000  # the logits of a batch of texts; those of all rows are 600,000
    assert fitted.weights["classifier.weight"].shape == (1000, tiny.WIDTH)


# ---- how strong, and how good


def test_dev_rows_choose_the_strength_and_are_told_of(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    shuffled = labels[torch.randperm(90, generator=torch.Generator().manual_seed(0))]
    sure = fit_head_to(model, packed, labels, dev=(packed, labels.numpy()))
    unsure = fit_head_to(model, packed, shuffled, dev=(packed, labels.numpy()))
    assert sure.strength > unsure.strength
    for fitted in (sure, unsure):
        assert fitted.dev_logits is not None
        assert fitted.dev_logits.dtype == np.float32
        assert fitted.accuracy == pytest.approx((fitted.dev_logits.argmax(1) == labels.numpy()).mean())
        assert fitted.fold_logits is None


def test_dev_labels_are_not_looked_at_where_they_may_not_choose(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"))
    other = (labels.numpy() + 1) % 3
    fits = [fit_head_to(model, packed, labels, dev=(packed, of), choose_by_dev=False) for of in (labels.numpy(), other)]
    np.testing.assert_array_equal(fits[0].dev_logits, fits[1].dev_logits)
    assert fits[0].strength == fits[1].strength
    assert fits[0].accuracy > fits[1].accuracy


def test_with_folds_each_row_is_told_of_by_a_head_that_did_not_see_it(checkpoint: Any) -> None:
    model, packed, _ = loaded(checkpoint("bert"), 60)
    rng = np.random.default_rng(0)
    unrelated = torch.from_numpy(rng.integers(0, 3, 60))
    folds = np.where(np.arange(60) < 6, -1, np.arange(60) // 3 % 3)
    fitted = fit_head_to(model, packed, unrelated, folds=folds)
    assert fitted.fold_logits is not None
    assert fitted.fold_logits.shape == (60, 3)
    assert np.isnan(fitted.fold_logits[:6]).all()
    told = fitted.fold_logits[6:]
    right = told.argmax(1) == unrelated.numpy()[6:]
    assert fitted.accuracy == pytest.approx(right.mean())
    saw = fit_head_to(model, packed, unrelated, dev=(packed, unrelated.numpy()))
    assert fitted.accuracy < saw.accuracy - 0.15


def test_few_rows_are_cross_fitted_and_of_many_a_tenth_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(60) % 3
    assert np.bincount(fitted_head._parts_of(labels, None)).tolist() == [12] * 5
    monkeypatch.setattr(fitted_head, "_FEW", 50)
    parts = fitted_head._parts_of(labels, None)
    assert sorted(set(parts)) == [-1, 0]
    assert (parts == 0).sum() == 6
    assert np.bincount(labels.numpy()[parts == 0]).tolist() == [2, 2, 2]


def test_a_single_row_of_each_label_is_fitted_though_nothing_can_judge_it(checkpoint: Any) -> None:
    model, packed, labels = loaded(checkpoint("bert"), 3)
    fitted = fit_head_to(model, packed, labels)
    assert fitted.rows == 3
    assert np.isnan(fitted.accuracy)
    fitted.put_into(model, 1.0)
    assert (predict_logits(model, packed).argmax(1) == labels.numpy()).all()


def test_folds_of_examples_fit_in(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    texts, labels = tiny.texts(30)
    examples = Examples.from_texts([*texts, "a lone text"], [*labels, "rare"])
    packed = encode(examples, tokenizer, max_length=64)
    model.classifier = nn.Linear(tiny.WIDTH, 4)
    folds = fold_examples(examples, 3)
    fitted = fit_head_to(model, packed, torch.from_numpy(examples.labels), folds=folds)
    assert fitted.fold_logits is not None
    assert np.array_equal(np.isnan(fitted.fold_logits).all(1), folds < 0)
