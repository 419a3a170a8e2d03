"""Examples → token ids, tokenised once and kept packed; batches are cut from the pack on any device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.data import Examples
from calmix.errors import InputError

__all__ = ["Packed", "counts_from_padding", "encode", "usable_length"]

_CHUNK = 8192

# RoBERTa and its kin count positions from pad_token_id + 1: two of their position embeddings are never a token's.
_COUNT_FROM_PADDING = {
    *("camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "mpnet", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}


@dataclass(frozen=True, eq=False)
class Packed:
    """Token ids of many sequences, end to end, with where each begins.

    A sample is one sequence, or one per choice. Lengths and counts live on the host, so that the shape of a
    batch is known there without waiting for the device; the ids live wherever training happens.
    """

    ids: Tensor
    types: Tensor | None
    starts: Tensor
    lengths: Tensor
    first: Tensor
    host_lengths: NDArray[np.int64]
    """The longest sequence of each sample."""
    counts: NDArray[np.int64] | None
    """How many choices each sample has; None where there are none to choose from."""
    pad_id: int
    limit: int
    """The longest sequence the model can read: no batch is padded beyond it."""
    truncated: int
    """How many samples were longer than the limit and lost their end."""

    def __len__(self) -> int:
        return len(self.host_lengths)

    def to(self, device: torch.device) -> "Packed":
        """Return the same pack with its tensors on `device`."""
        return replace(
            self,
            ids=self.ids.to(device),
            types=None if self.types is None else self.types.to(device),
            starts=self.starts.to(device),
            lengths=self.lengths.to(device),
            first=self.first.to(device),
        )

    def width(self, rows: NDArray[np.int64], multiple: int = 8) -> int:
        """Return the padded length of a batch: its longest sequence, rounded up to `multiple` within the limit."""
        longest = int(self.host_lengths[rows].max())
        return min(-(-longest // multiple) * multiple, self.limit)

    def batch(self, rows: Tensor, *, width: int, choices: int | None = None) -> dict[str, Tensor]:
        """Return the padded inputs of `rows`: [rows, width], or [rows, choices, width]."""
        sequences = self.first[rows]
        if choices is not None:
            sequences = sequences[:, None] + torch.arange(choices, device=rows.device)
        positions = torch.arange(width, device=rows.device)
        mask = positions < self.lengths[sequences][..., None]
        where = (self.starts[sequences][..., None] + positions).clamp_(max=len(self.ids) - 1)
        inputs = {
            "input_ids": torch.where(mask, self.ids[where], self.pad_id).long(),
            "attention_mask": mask.long(),
        }
        if self.types is not None:
            inputs["token_type_ids"] = torch.where(mask, self.types[where], 0).long()
        return inputs


def usable_length(tokenizer: Any, config: Any, max_length: int | None) -> int:
    """Return how many tokens a sequence may have: what was asked, bounded by what the model can read."""
    # A tokenizer without a limit says 10^30, which no tokenizers library takes.
    limits = [min(int(tokenizer.model_max_length), 1_000_000)]
    positions = getattr(config, "max_position_embeddings", None)
    if positions and positions > 0:
        limits.append(positions - 2 if counts_from_padding(config) else positions)
    if max_length is not None:
        limits.append(max_length)
    return min(limits)


def counts_from_padding(config: Any) -> bool:
    """Return whether an architecture tells positions, and so which tokens are text, by the padding token's id."""
    return config.model_type in _COUNT_FROM_PADDING


def encode(examples: Examples, tokenizer: Any, *, max_length: int) -> Packed:
    """Return the packed token ids of every example; texts above `max_length` tokens lose their end."""
    counts = examples.choice_counts
    texts: Sequence[str] = examples.column("text")
    seconds: Sequence[str] | None = None
    if counts is not None:
        texts = [text for text, count in zip(texts, counts, strict=True) for _ in range(count)]
        seconds = [choice for choices in examples.column("choices") for choice in choices]
    elif examples.kind == "pair":
        seconds = examples.column("text_b")
    marks = tokenizer.num_special_tokens_to_add(pair=seconds is not None)
    if max_length <= marks:
        # The tokenizers library would not cut at all then.
        raise InputError(
            f"max_length {max_length} leaves no room for text: this tokenizer adds {marks} marks of its own"
        )

    ids: list[NDArray[np.int32]] = []
    types: list[NDArray[np.int8]] = []
    lengths = np.empty(len(texts), dtype=np.int64)
    cut = np.zeros(len(texts), dtype=bool)
    for start in range(0, len(texts), _CHUNK):
        part = slice(start, start + _CHUNK)
        encoded = tokenizer(
            texts[part],
            None if seconds is None else seconds[part],
            truncation="longest_first",
            max_length=max_length,
            return_attention_mask=False,
        )
        rows = encoded["input_ids"]
        lengths[part] = [len(row) for row in rows]
        ids.append(np.fromiter((i for row in rows for i in row), dtype=np.int32))
        if "token_type_ids" in encoded and seconds is not None:
            types.append(np.fromiter((t for row in encoded["token_type_ids"] for t in row), dtype=np.int8))
        if encoded.encodings is not None:
            cut[part] = [bool(e.overflowing) for e in encoded.encodings]

    if not lengths.all():
        _refuse_empty(examples, int(np.flatnonzero(lengths == 0)[0]), counts)
    starts = np.cumsum(lengths) - lengths
    per_sample = np.ones(len(examples), dtype=np.int64) if counts is None else np.asarray(counts, dtype=np.int64)
    first = np.cumsum(per_sample) - per_sample
    return Packed(
        ids=torch.from_numpy(np.concatenate(ids or [np.empty(0, np.int32)])),
        types=torch.from_numpy(np.concatenate(types)) if types else None,
        starts=torch.from_numpy(starts),
        lengths=torch.from_numpy(lengths),
        first=torch.from_numpy(first),
        host_lengths=np.maximum.reduceat(lengths, first) if len(first) else lengths,
        counts=None if counts is None else per_sample,
        pad_id=tokenizer.pad_token_id,
        limit=max_length,
        truncated=int(np.logical_or.reduceat(cut, first).sum()) if len(first) else 0,
    )


def _refuse_empty(examples: Examples, sequence: int, counts: NDArray[np.int64] | None) -> None:
    sample = sequence if counts is None else int(np.searchsorted(np.cumsum(counts), sequence, side="right"))
    where = examples.source or "the data"
    raise InputError(f"{where}: the text of {examples.ids[sample]!r} has not one token for this tokenizer: drop it")
