"""The sentence CNN against an independent one made of torch's convolutions."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

from calmix.models import anatomy, head_of
from calmix.models.sentences import SentenceCnnConfig, SentenceCnnForSequenceClassification


@pytest.fixture
def model() -> SentenceCnnForSequenceClassification:
    torch.manual_seed(0)
    config = SentenceCnnConfig(vocab_size=20, vector_size=6, maps=4, num_labels=3)
    return SentenceCnnForSequenceClassification(config).eval()


def reference(model: SentenceCnnForSequenceClassification, ids: list[int]) -> Tensor:
    """Kim's network on one text, without padding but for the zeros around it."""
    vectors = model.cnn.embeddings.weight[torch.tensor(ids)].T[None]
    pooled = []
    for width, layer in zip((3, 4, 5), model.cnn.convolutions, strict=True):
        kernel = layer.weight.view(4, width, 6).transpose(1, 2)
        pooled.append(functional.conv1d(vectors, kernel, layer.bias, padding=width - 1).relu().amax(2))
    return model.classifier(torch.cat(pooled, 1))[0]


def test_it_is_kims_network_whatever_else_is_in_the_batch(model: SentenceCnnForSequenceClassification) -> None:
    texts = [[3, 4, 5, 6, 7, 8, 9], [10], [11, 12, 3, 4]]
    ids, mask = torch.zeros(3, 9, dtype=torch.long), torch.zeros(3, 9, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(text), 1
    logits = model(input_ids=ids, attention_mask=mask).logits
    for row, text in enumerate(texts):
        torch.testing.assert_close(logits[row], reference(model, text))
    torch.testing.assert_close(model(input_ids=ids).logits, logits)


def test_padding_learns_nothing_and_dropout_is_before_the_head(model: SentenceCnnForSequenceClassification) -> None:
    model.train()
    ids = torch.tensor([[3, 4, 0, 0], [5, 6, 7, 8]])
    once, again = (model(input_ids=ids, attention_mask=(ids > 0).long()).logits for _ in range(2))
    assert not torch.equal(once, again)
    once.sum().backward()
    assert model.cnn.embeddings.weight.grad is not None
    assert not model.cnn.embeddings.weight.grad[0].any()
    assert model.cnn.embeddings.weight.grad[5].any()


def test_its_parts_are_found_and_it_comes_back_from_disk(
    model: SentenceCnnForSequenceClassification, tmp_path: Path
) -> None:
    parts = anatomy(model)
    assert (parts.embeddings, parts.layers, parts.head, parts.inner) == ("cnn.embeddings", (), "classifier", None)
    assert head_of(model) is model.classifier
    model.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    ids = torch.tensor([[3, 4, 5, 9]])
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert loaded.config.widths == [3, 4, 5]
