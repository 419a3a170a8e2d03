"""Token ids, packed once; batches equal to the tokenizer's own padding."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from tokenizers import normalizers
from torch import Tensor
from transformers import PreTrainedConfig

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import Packed, encode, load_trained, usable_length


def _padded(tokenizer: Any, texts: list[str], seconds: list[str] | None, width: int) -> Any:
    """Return what the tokenizer itself makes of texts, cut and padded to a width."""
    return tokenizer(
        texts, seconds, padding="max_length", truncation="longest_first", max_length=width, return_tensors="pt"
    )


def _assert_same(batch: dict[str, Tensor], expected: Any) -> None:
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert torch.equal(batch["attention_mask"], expected["attention_mask"])
    if "token_type_ids" in batch:
        assert torch.equal(batch["token_type_ids"], expected["token_type_ids"])
    assert all(value.dtype == torch.int64 for value in batch.values())


@pytest.mark.parametrize("architecture", ["bert", "roberta", "llama"])
@pytest.mark.parametrize("kind", ["text", "pair"])
def test_a_batch_is_what_the_tokenizer_pads(architecture: str, kind: str) -> None:
    examples, tokenizer = tiny.examples(20, kind=kind), tiny.tokenizer(architecture)
    packed = encode(examples, tokenizer, max_length=64)
    rows = np.array([7, 3, 19, 0, 3])
    width = packed.width(rows)
    seconds = [examples.column("text_b")[i] for i in rows] if kind == "pair" else None
    texts = [examples.column("text")[i] for i in rows]
    expected = _padded(tokenizer, texts, seconds, width)
    _assert_same(packed.batch(torch.from_numpy(rows), width=width), expected)


def test_segment_ids_come_with_pairs_where_the_model_reads_them() -> None:
    rows = torch.arange(3)
    for architecture, kind, present in [("bert", "pair", True), ("bert", "text", False), ("roberta", "pair", False)]:
        packed = encode(tiny.examples(3, kind=kind), tiny.tokenizer(architecture), max_length=64)
        assert ("token_type_ids" in packed.batch(rows, width=32)) is present


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_batch_of_choices_is_what_the_tokenizer_pads_row_by_row(count: int) -> None:
    examples, tokenizer = tiny.examples(12, kind="choices", counts=(2, 3, 4)), tiny.tokenizer("bert")
    packed = encode(examples, tokenizer, max_length=64)
    assert packed.counts is not None
    rows = np.flatnonzero(packed.counts == count)[::-1].copy()
    width = packed.width(rows)
    batch = packed.batch(torch.from_numpy(rows), width=width, choices=count)
    assert batch["input_ids"].shape == (len(rows), count, width)
    for at, row in enumerate(rows):
        choices = examples.column("choices")[row]
        expected = _padded(tokenizer, [examples.column("text")[row]] * count, choices, width)
        _assert_same({name: value[at] for name, value in batch.items()}, expected)


@pytest.mark.parametrize("kind", ["text", "pair"])
def test_long_texts_are_cut_as_the_tokenizer_cuts_them_and_counted(kind: str) -> None:
    examples, tokenizer = tiny.examples(20, kind=kind), tiny.tokenizer("bert")
    packed = encode(examples, tokenizer, max_length=9)
    seconds = examples.column("text_b") if kind == "pair" else None
    expected = _padded(tokenizer, examples.column("text"), seconds, 9)
    rows = np.arange(20)
    assert packed.width(rows) == 9
    _assert_same(packed.batch(torch.from_numpy(rows), width=9), expected)
    whole = encode(examples, tokenizer, max_length=64)
    assert whole.truncated == 0
    assert packed.truncated == int((whole.host_lengths > 9).sum()) > 0


def test_a_sample_of_which_two_choices_are_cut_counts_once() -> None:
    examples, tokenizer = tiny.examples(6, kind="choices", counts=(2, 3)), tiny.tokenizer("bert")
    packed = encode(examples, tokenizer, max_length=6)
    whole = encode(examples, tokenizer, max_length=64)
    assert packed.truncated == int((whole.host_lengths > 6).sum())


def test_many_texts_are_packed_in_chunks_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    examples, tokenizer = tiny.examples(20, kind="pair"), tiny.tokenizer("bert")
    whole = encode(examples, tokenizer, max_length=64)
    monkeypatch.setattr("calmix.models.encoding._CHUNK", 7)
    chunked = encode(examples, tokenizer, max_length=64)
    for field in fields(Packed):
        one, other = getattr(whole, field.name), getattr(chunked, field.name)
        assert one is other is None or np.array_equal(one, other)


def test_widths_are_rounded_up_but_never_beyond_the_limit() -> None:
    packed = encode(tiny.examples(30), tiny.tokenizer("bert"), max_length=13)
    longest = int(packed.host_lengths.argmax())
    shortest = int(packed.host_lengths.argmin())
    assert packed.host_lengths[longest] > 8 >= packed.host_lengths[shortest]
    assert packed.width(np.array([longest, shortest]), multiple=8) == 13
    assert packed.width(np.array([shortest]), multiple=8) == 8


def test_every_batch_has_one_of_the_widths_that_are_told_before() -> None:
    packed = encode(tiny.examples(30), tiny.tokenizer("bert"), max_length=13)
    batches = np.random.default_rng(0).integers(0, len(packed), (200, 3))
    assert {packed.width(rows) for rows in [*batches, *np.arange(len(packed))[:, None]]} == packed.widths()


def test_on_the_cpu_a_batch_is_as_wide_as_its_longest_sequence() -> None:
    packed = encode(tiny.examples(30), tiny.tokenizer("bert"), max_length=64)
    rows = np.array([4, 17])
    assert packed.width(rows) == packed.host_lengths[rows].max()
    assert packed.to(torch.device("meta")).width(rows) % 8 == 0


def test_a_wider_batch_only_has_more_padding() -> None:
    packed = encode(tiny.examples(5), tiny.tokenizer("bert"), max_length=64)
    rows = torch.arange(5)
    narrow, wide = packed.batch(rows, width=16), packed.batch(rows, width=40)
    assert torch.equal(narrow["input_ids"], wide["input_ids"][:, :16])
    assert (wide["input_ids"][:, 16:] == packed.pad_id).all()
    assert not wide["attention_mask"][:, 16:].any()


def test_no_examples_make_an_empty_pack() -> None:
    packed = encode(tiny.examples(3).take(np.array([], dtype=np.int64)), tiny.tokenizer("bert"), max_length=8)
    assert len(packed) == 0
    assert packed.truncated == 0


@pytest.mark.parametrize(("kind", "too_short"), [("text", 2), ("pair", 3)])
def test_a_limit_with_no_room_for_text_is_refused(kind: str, too_short: int) -> None:
    examples, tokenizer = tiny.examples(3, kind=kind), tiny.tokenizer("bert")
    with pytest.raises(InputError, match=f"max_length {too_short} leaves no room for text"):
        encode(examples, tokenizer, max_length=too_short)
    assert encode(examples, tokenizer, max_length=too_short + 1).host_lengths.max() == too_short + 1


def test_a_text_without_a_token_is_refused_by_name() -> None:
    tokenizer = tiny.tokenizer("llama")
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("·", "")
    examples = Examples.from_texts(["a cat", "·"], ["x", "y"])
    with pytest.raises(InputError, match=f"texts: the text of '{examples.ids[1]}' has not one token"):
        encode(examples, tokenizer, max_length=8)


@pytest.mark.parametrize(
    ("architecture", "positions", "asked", "usable"),
    [
        ("bert", 64, None, 64),
        ("bert", 64, 20, 20),
        ("bert", 40, None, 40),
        ("roberta", 42, None, 40),
        ("mpnet", 42, 99, 40),
    ],
)
def test_the_usable_length_is_the_smallest_of_the_limits(
    architecture: str, positions: int, asked: int | None, usable: int
) -> None:
    config = tiny.config(architecture)
    config.max_position_embeddings = positions
    assert usable_length(tiny.tokenizer(architecture), config, asked) == usable


def test_where_nothing_sets_a_limit_texts_are_not_cut() -> None:
    tokenizer = tiny.tokenizer("bert")
    tokenizer.model_max_length = int(1e30)
    limit = usable_length(tokenizer, PreTrainedConfig(), None)
    packed = encode(Examples.from_texts(["cat " * 3000], ["x"]), tokenizer, max_length=limit)
    assert packed.host_lengths.tolist() == [3002]
    assert packed.truncated == 0


def test_a_tokenizer_that_pads_on_the_left_has_its_batches_filled_there() -> None:
    tokenizer = tiny.tokenizer("bert")
    tokenizer.padding_side = "left"
    examples = tiny.examples(5, kind="pair")
    packed = encode(examples, tokenizer, max_length=64)
    ours = packed.batch(torch.arange(5), width=30)
    theirs = _padded(tokenizer, examples.column("text"), examples.column("text_b"), 30)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(("kind", "limit"), [("mpt", 128), ("markuplm", 126), ("gemma3", 128)])
def test_texts_are_cut_at_the_positions_a_network_has_whatever_it_calls_them(
    checkpoint_of: Any, kind: str, limit: int
) -> None:
    model, tokenizer = load_trained(checkpoint_of(kind))
    tokenizer.model_max_length = 10_000
    assert usable_length(tokenizer, model.config, None) == limit
    packed = encode(Examples.from_texts(["cat " * 3000, "dog"], ["x", "y"]), tokenizer, max_length=limit)
    assert model(**packed.batch(torch.arange(2), width=limit)).logits.isfinite().all()


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "distilbert", "electra"])
def test_a_text_of_the_usable_length_can_be_read_and_one_more_token_cannot(architecture: str) -> None:
    from transformers import AutoModelForSequenceClassification

    config, tokenizer = tiny.config(architecture), tiny.tokenizer(architecture)
    tokenizer.model_max_length = 10_000
    limit = usable_length(tokenizer, config, None)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    ids = torch.full((1, limit), 20)
    model(ids)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, limit + 1), 20))


def test_in_main_memory_nobody_asks_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("calmix.models.encoding.usable")
    packed = encode(tiny.examples(5), tiny.tokenizer("bert"), max_length=64)
    assert packed.batch(torch.arange(5), width=16)["input_ids"].shape == (5, 16)
