"""MC-dropout: what is switched on, what is not, and what is left behind."""

from typing import Any

import pytest
import tiny
import torch
from torch import nn
from transformers import PreTrainedConfig

from calmix.errors import InputError
from calmix.models import Dropout, encode, load_trained, predict_logits
from calmix.models.dropping import dropping


def test_the_mean_is_that_of_passes_with_dropout_on(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(5), tokenizer, max_length=32)
    dropout = Dropout(7, 0.3, seed=5)
    found = torch.from_numpy(predict_logits(model, packed, dropout=dropout)).exp()
    order = torch.from_numpy(packed.host_lengths.copy()).argsort(stable=True).flip(0)  # as it is predicted
    inputs = packed.batch(order, width=packed.width(order.numpy()))
    with dropping(model, dropout), torch.no_grad():
        each = torch.stack([model(**inputs).logits.softmax(1) for _ in range(7)])
    assert each.std(0).max() > 0.01
    torch.testing.assert_close(found[order], each.mean(0), atol=1e-5, rtol=1e-4)


def test_the_same_seed_predicts_the_same_and_leaves_no_trace(checkpoint: Any) -> None:
    model, tokenizer = load_trained(checkpoint("bert"))
    packed = encode(tiny.examples(9), tokenizer, max_length=32)
    plain, state = predict_logits(model, packed), torch.get_rng_state()
    once, again, other = (predict_logits(model, packed, dropout=Dropout(3, seed=s)) for s in (0, 0, 1))
    assert (once == again).all()
    assert (once != other).any()
    assert torch.equal(torch.get_rng_state(), state)
    assert (predict_logits(model, packed) == plain).all()
    assert not any(module.training for module in model.modules())


class _Net(nn.Module):
    """A batch norm, perhaps a dropout, and a head, where calmix looks for them."""

    base_model_prefix = "body"

    def __init__(self, *, dropout: bool) -> None:
        super().__init__()
        layers = [nn.Embedding(10, 8), nn.BatchNorm1d(8), *([nn.Dropout(0.0)] if dropout else [])]
        self.body = nn.Sequential(*layers)
        self.classifier = nn.Linear(8, 3)
        self.config = PreTrainedConfig()

    def get_input_embeddings(self) -> nn.Module:
        return self.body[0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.body(ids))
        return logits


@pytest.mark.parametrize("dropout", [True, False])
def test_batch_norms_keep_what_they_learned_and_a_model_without_dropout_drops_before_its_head(dropout: bool) -> None:
    model, ids = _Net(dropout=dropout).eval(), torch.arange(10)
    plain, statistics = model(ids), model.body[1].running_mean.clone()
    with dropping(model, Dropout(1, 0.5)):
        assert not model.body[1].training
        dropped = model(ids)
    assert not torch.allclose(dropped, plain)
    assert torch.equal(model.body[1].running_mean, statistics)
    assert torch.equal(model(ids), plain)
    with pytest.raises(InputError, match="give a rate"), dropping(model, Dropout(5)):
        pass


@pytest.mark.parametrize(("passes", "rate"), [(0, None), (-1, 0.1), (3, 0.0), (3, 1.0), (3, float("nan"))])
def test_senseless_settings_are_refused(passes: int, rate: float | None) -> None:
    with pytest.raises(InputError):
        Dropout(passes, rate)


def test_settings_survive_being_written_down() -> None:
    for dropout in (Dropout(), Dropout(4, 0.3, 2)):
        assert Dropout.from_json(dropout.to_json()) == dropout
