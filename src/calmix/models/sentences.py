"""The sentence CNN (Kim 2014): convolutions over word vectors, the largest of each over the text, one linear layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

__all__ = ["SentenceCnnConfig", "SentenceCnnForSequenceClassification"]


class SentenceCnnConfig(PreTrainedConfig):  # type: ignore[misc]
    """What a sentence CNN is; the values are Kim's.

    Args:
        vocab_size: words, special tokens included.
        vector_size: numbers in a word's vector.
        widths: of the convolutions, in words.
        maps: how many convolutions there are of each width.
        dropout: before the head.
        words_with_vectors: how many words began with a pretrained vector.
        pad_token_id: the token that fills batches; its vector stays 0.
        others: what every configuration of transformers has.
    """

    model_type = "calmix-sentence-cnn"

    def __init__(
        self,
        vocab_size: int = 4,
        vector_size: int = 300,
        widths: Sequence[int] = (3, 4, 5),
        maps: int = 100,
        dropout: float = 0.5,
        words_with_vectors: int = 0,
        pad_token_id: int = 0,
        **others: Any,
    ) -> None:
        self.vocab_size, self.vector_size, self.widths, self.maps = vocab_size, vector_size, list(widths), maps
        self.dropout, self.words_with_vectors = dropout, words_with_vectors
        super().__init__(pad_token_id=pad_token_id, **others)


class _Body(nn.Module):
    """From token ids to the largest value of every map over the text."""

    def __init__(self, config: SentenceCnnConfig) -> None:
        super().__init__()
        self.widths = tuple(config.widths)
        self.embeddings = nn.Embedding(config.vocab_size, config.vector_size, padding_idx=config.pad_token_id)
        self.convolutions = nn.ModuleList(nn.Linear(w * config.vector_size, config.maps) for w in self.widths)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        inside = mask.to(self.embeddings.weight.dtype)
        vectors = self.embeddings(ids) * inside[..., None]
        pooled = []
        for width, convolution in zip(self.widths, self.convolutions, strict=True):
            # Zeros around the text, so that its first and last words are in as many windows as the others. As linear
            # layers over windows, convolutions of several seeds can be computed by one product.
            wide = functional.pad(vectors, (0, 0, width - 1, width - 1))
            places = ids.shape[1] + width - 1
            windows = torch.cat([wide[:, k : k + places] for k in range(width)], dim=-1)
            # A window without a word in it is there because another text of the batch is longer: it does not count.
            around = functional.pad(inside, (width - 1, width - 1))
            worded = torch.stack([around[:, k : k + places] for k in range(width)]).amax(0) > 0
            maps = functional.relu(convolution(windows)).masked_fill(~worded[..., None], 0.0)
            pooled.append(maps.amax(1))
        return torch.cat(pooled, dim=-1)


class SentenceCnnForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """The network: `cnn` (embeddings and convolutions), dropout, and the head."""

    config_class = SentenceCnnConfig
    base_model_prefix = "cnn"

    def __init__(self, config: SentenceCnnConfig) -> None:
        super().__init__(config)
        self.cnn = _Body(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(len(config.widths) * config.maps, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.25, 0.25)  # Kim's, of words without a vector
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        """Return the lookup from token ids to vectors."""
        return self.cnn.embeddings

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_ignored: Any
    ) -> SequenceClassifierOutput:
        """Return the logits of token ids [rows, width]."""
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(self.cnn(input_ids, attention_mask))))


AutoConfig.register(SentenceCnnConfig.model_type, SentenceCnnConfig, exist_ok=True)
AutoModelForSequenceClassification.register(SentenceCnnConfig, SentenceCnnForSequenceClassification, exist_ok=True)
