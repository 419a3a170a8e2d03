"""Logits of many examples: in their order, whatever the batches were."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.models import encode, load_trained, predict_logits


def test_logits_are_those_of_each_example_alone(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = load_trained(checkpoint(architecture))
    packed = encode(tiny.examples(15, kind="pair"), tokenizer, max_length=64)
    alone = [
        model(**packed.batch(torch.tensor([i]), width=int(packed.host_lengths[i]))).logits[0]
        for i in range(len(packed))
    ]
    logits = predict_logits(model, packed, tokens=100)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, torch.stack(alone).detach(), atol=1e-5)


@pytest.mark.parametrize("kind", ["convbert", "t5gemma", "fnet", "xlnet", "gemma3"])
def test_the_logits_of_a_text_do_not_depend_on_who_shares_its_batch(checkpoint_of: Any, kind: str) -> None:
    model, tokenizer = load_trained(checkpoint_of(kind))
    packed = encode(tiny.examples(9), tokenizer, max_length=64)
    assert len(set(packed.host_lengths)) > 3
    alone = [predict_logits(model, packed, rows=np.array([row]))[0] for row in range(9)]
    np.testing.assert_allclose(predict_logits(model, packed), np.stack(alone), rtol=1e-4, atol=1e-4)


def test_logits_of_ragged_choices_are_those_of_each_row_and_minus_infinity_beyond(
    checkpoint: Any, encoder: str
) -> None:
    model, tokenizer = load_trained(checkpoint(encoder, choices=True))
    packed = encode(tiny.examples(10, kind="choices", counts=(2, 4, 3, 1)), tokenizer, max_length=64)
    logits = predict_logits(model, packed, tokens=150)
    assert logits.shape == (10, 4)
    for i, count in enumerate([2, 4, 3, 1, 2, 4, 3, 1, 2, 4]):
        width = int(packed.host_lengths[i])
        alone = model(**packed.batch(torch.tensor([i]), width=width, choices=count)).logits[0]
        np.testing.assert_allclose(logits[i, :count], alone.detach(), atol=1e-5)
        assert (logits[i, count:] == -np.inf).all()


def test_the_order_of_the_examples_does_not_matter(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    examples = tiny.examples(40)
    order = np.random.default_rng(0).permutation(40)
    straight = predict_logits(model, encode(examples, tokenizer, max_length=64), tokens=200)
    shuffled = predict_logits(model, encode(examples.take(order), tokenizer, max_length=64), tokens=200)
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-5)


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_rows_asked_for_come_in_the_order_they_were_asked(checkpoint: Any, kind: str) -> None:
    model, tokenizer = load_trained(checkpoint("bert", choices=kind == "choices"))
    packed = encode(tiny.examples(12, kind=kind), tokenizer, max_length=64)
    everything = predict_logits(model, packed)
    rows = np.array([5, 0, 11, 5])
    np.testing.assert_allclose(predict_logits(model, packed, rows=rows), everything[rows], atol=1e-5)


def test_a_share_of_the_rows_has_as_many_columns_as_the_whole(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert", choices=True))
    packed = encode(tiny.examples(6, kind="choices", counts=(2, 4)), tokenizer, max_length=64)
    assert predict_logits(model, packed, rows=np.array([0, 2])).shape == (2, 4)
    assert predict_logits(model, packed, rows=np.array([], dtype=np.int64)).shape == (0, 4)


@pytest.mark.parametrize("tokens", [1, 64, 300, 100_000])
def test_no_batch_is_larger_than_the_bound_on_tokens_unless_it_is_one_row(checkpoint: Any, tokens: int) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(30), tokenizer, max_length=64)
    shapes: list[torch.Size] = []
    model.register_forward_pre_hook(lambda _m, _a, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True)
    seen: list[int] = []
    predict_logits(model, packed, tokens=tokens, progress=seen.append)
    assert all(shape.numel() <= tokens or shape[0] == 1 for shape in shapes)
    assert sum(seen) == sum(shape[0] for shape in shapes) == 30
    assert shapes[0][1] == max(shape[1] for shape in shapes)


def test_the_model_is_in_evaluation_mode_meanwhile_and_afterwards_as_it_was(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(4), tokenizer, max_length=64)
    model.train()
    assert np.array_equal(predict_logits(model, packed), predict_logits(model, packed))
    assert model.training
    with pytest.raises(ZeroDivisionError):
        predict_logits(model, packed, progress=lambda _n: 1 // 0)
    assert model.training
    model.eval()
    predict_logits(model, packed)
    assert not model.training


def test_lower_precision_is_near_but_not_the_same(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(20), tokenizer, max_length=64)
    exact, lower = predict_logits(model, packed), predict_logits(model, packed, precision="bf16")
    assert lower.dtype == np.float32
    assert not np.array_equal(lower, exact)
    np.testing.assert_allclose(lower, exact, atol=0.05)


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_who_visits_is_told_where_the_samples_of_each_batch_stand(checkpoint: Any, kind: str) -> None:
    model, tokenizer = load_trained(checkpoint("bert", choices=kind == "choices"))
    packed = encode(tiny.examples(12, kind=kind), tokenizer, max_length=64)
    asked = np.array([7, 3, 9, 0, 7])
    logits: dict[int, np.ndarray] = {}
    seen: list[torch.Tensor] = []
    model.register_forward_hook(lambda _module, _args, out: seen.append(out.logits))

    def visit(places: np.ndarray, inputs: dict[str, torch.Tensor]) -> None:
        assert torch.is_inference_mode_enabled()
        assert not model.training
        assert len(inputs["input_ids"]) == len(places)
        logits.update(zip(places.tolist(), seen[-1].numpy(), strict=True))

    model.train()
    said = predict_logits(model, packed, rows=asked, tokens=60, visit=visit)
    assert len(seen) > 1
    assert logits.keys() == set(range(5))
    for place, row in logits.items():
        np.testing.assert_array_equal(said[place, : len(row)], row)
