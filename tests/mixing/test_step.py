"""One batch on its way through."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tiny
import torch

from calmix.mixing import choose, fill_tokens
from calmix.models import anatomy


def test_the_clean_forward_is_computed_when_asked_for_and_once(make_step: Any) -> None:
    step = make_step()
    forwards: list[int] = []
    step.model.register_forward_hook(lambda *_: forwards.append(1))
    assert forwards == []
    assert step.logits is step.logits
    assert forwards == [1]


def test_the_wrapped_model_is_the_one_that_is_called(make_step: Any) -> None:
    step = make_step()
    step.wrapped = torch.nn.Identity()
    step.wrapped.forward = lambda **inputs: type("Output", (), {"logits": torch.full((5, 3), 7.0)})
    assert (step.logits == 7).all()


def test_logits_are_float32_whatever_the_arithmetic(make_step: Any) -> None:
    step = make_step()
    step.model.to(torch.bfloat16)
    assert step.logits.dtype == torch.float32


def test_its_length_is_its_rows(make_step: Any) -> None:
    assert len(make_step(rows=4)) == len(make_step(rows=4, kind="choices")) == 4


def test_the_anatomy_is_the_given_one_or_the_models(make_step: Any) -> None:
    step = make_step()
    assert step.anatomy == anatomy(step.model)
    given = make_step()
    given.parts = anatomy(make_step("roberta").model)
    assert given.anatomy is given.parts


def test_one_lambda_for_the_batch_or_one_each(make_step: Any) -> None:
    step = make_step()
    whole, each = step.beta(0.4), step.beta(0.4, per_sample=True)
    assert whole.shape == each.shape == (5,)
    assert len(set(whole.tolist())) == 1
    assert len(set(each.tolist())) == 5
    assert step.beta(0).tolist() == [1.0] * 5


def test_permutations_are_of_its_rows(make_step: Any) -> None:
    assert sorted(make_step().permutation().tolist()) == [0, 1, 2, 3, 4]


def test_tokens_to_pad_with_are_the_tokenizers_own() -> None:
    tokenizer = tiny.tokenizer("bert")
    assert fill_tokens(tokenizer) == {
        "pad": tokenizer.pad_token_id,
        "sep": tokenizer.sep_token_id,
        "unused": tokenizer.convert_tokens_to_ids("[unused0]"),
    }


def test_a_tokenizer_without_separator_lends_its_end_of_sequence_token() -> None:
    tokenizer = tiny.tokenizer("llama")
    assert fill_tokens(tokenizer) == {"pad": tokenizer.pad_token_id, "sep": tokenizer.eos_token_id}


@pytest.mark.parametrize("name", ["<unused0>", "[unused1]", "madeupword0000", "<|reserved_special_token_0|>"])
def test_an_unused_token_goes_by_many_names(name: str) -> None:
    tokenizer = tiny.tokenizer("llama")
    tokenizer.add_tokens([name])
    assert fill_tokens(tokenizer)["unused"] == tokenizer.convert_tokens_to_ids(name)


def test_a_tokenizer_without_any_of_them_offers_none() -> None:
    tokenizer = tiny.tokenizer("llama")
    tokenizer.pad_token = tokenizer.eos_token = None
    assert fill_tokens(tokenizer) == {}


def test_a_signal_is_looked_up_by_row_or_worked_out_for_the_step(make_step: Any) -> None:
    step = make_step(rows=3)
    step.rows = torch.tensor([4, 0, 2])
    step.signals = {"column": torch.arange(5) * 10, "live": lambda asked: asked.rows + 1}
    assert step.signal("column").tolist() == [40, 0, 20]
    assert step.column("column").tolist() == [0, 10, 20, 30, 40]
    assert step.signal("live").tolist() == [5, 1, 3]


def test_work_ahead_is_done_in_line_where_there_is_nothing_beside(make_step: Any) -> None:
    done: list[str] = []
    draws = make_step().ahead(lambda: done.append("drawn") or 7)
    assert done == ["drawn"]
    assert draws() == 7


class Watched:
    """A second stream that writes down what is done with it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def forked(self, *reads: torch.Tensor, lane: str) -> Iterator[None]:
        self.seen.append(f"fork, {len(reads)} read")
        yield
        self.seen.append("forked")

    def join(self, lane: str) -> None:
        self.seen.append("join")


def test_work_ahead_is_forked_and_waited_for_when_it_is_asked_for(make_step: Any) -> None:
    step = make_step()
    step.beside = beside = Watched()
    draws = step.ahead(lambda: beside.seen.append("drawn"))
    assert step.logits is not None
    beside.seen.append("forward")
    draws()
    assert beside.seen == ["fork, 2 read", "drawn", "forked", "forward", "join"]


@pytest.mark.parametrize("recipe", ["cls-mixup", "aum-saliency", "tdmixup", "informed-mixup"])
def test_who_mixes_at_the_head_draws_ahead_of_the_forward(recipe: str, make_step: Any) -> None:
    step = make_step()
    step.signals = {"side": torch.arange(len(step)) % 2}
    step.rows = torch.arange(len(step))
    step.beside = beside = Watched()
    step.model.register_forward_hook(lambda *_: beside.seen.append("forward"))
    choose(recipe).loss(step)
    assert beside.seen == ["fork, 2 read", "forked", "forward", "join"]


@pytest.mark.parametrize("recipe", ["input-mixup", "feature-mixup"])
def test_who_mixes_below_the_head_has_labels_mixed_beside_the_forward(recipe: str, make_step: Any) -> None:
    step = make_step()
    step.beside = beside = Watched()
    step.model.register_forward_hook(lambda *_: beside.seen.append("forward"))
    choose(recipe).loss(step)
    assert beside.seen == ["fork, 2 read", "forked", "forward", "join"]
