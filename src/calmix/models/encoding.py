"""Examples → token ids, tokenised once and kept packed; batches are cut from the pack on any device."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.tokenization_utils_base import PaddingStrategy, TruncationStrategy

from calmix.data import Examples
from calmix.errors import InputError
from calmix.kernels import usable

__all__ = ["Packed", "counts_from_padding", "depends_on_padding", "encode", "usable_length"]

_CHUNK = 8192
# Padded tokens in a batch without gradients: a GPU wants to be filled, while what a processor computes should stay in
# its cache.
_TOKENS_ON_CPU, _TOKENS = 1024, 16_384
# So many places of a sequence are written by one program of the kernel.
_PLACES = 128
_NONE: NDArray[np.int32] = np.empty(0, np.int32)

# RoBERTa and its kin count positions from pad_token_id + 1: two of their position embeddings are never a token's.
_COUNT_FROM_PADDING = {
    *(
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
    ),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}

# What these make of a text depends on how far it is filled up, whatever its attention mask says: convolutions, Fourier
# transforms, landmarks and pooling of neighbours look at what was filled in.
_DEPEND_ON_PADDING = {
    *("canine", "convbert", "fnet", "funnel", "mobilebert", "mra", "nystromformer", "t5gemma", "t5gemma2", "yoso"),
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
    left: bool = False
    """Whether shorter sequences are filled up before their first token."""

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

    def most(self, device: torch.device) -> int:
        """Return how many padded tokens are predicted at once."""
        return _TOKENS_ON_CPU if device.type == "cpu" else _TOKENS

    def width(self, rows: NDArray[np.int64], multiple: int | None = None) -> int:
        """Return the padded length of a batch: its longest sequence, rounded up to `multiple` within the limit.

        Unless it is given, that is 1 where the ids are in main memory: processors gain nothing from round widths,
        while GPUs have faster kernels for multiples of eight, and fewer shapes to capture.
        """
        if multiple is None:
            multiple = 1 if self.ids.device.type == "cpu" else 8
        longest = int(self.host_lengths[rows].max())
        return min(-(-longest // multiple) * multiple, self.limit)

    def widths(self) -> set[int]:
        """Return the padded lengths that batches may have: of each sequence on its own."""
        return {self.width(np.array([row])) for row in np.unique(self.host_lengths, return_index=True)[1]}

    def batch(self, rows: Tensor, *, width: int, choices: int | None = None) -> dict[str, Tensor]:
        """Return the padded inputs of `rows`: [rows, width], or [rows, choices, width]."""
        if self.ids.is_cuda and not self.left and usable(agrees_with_torch, self.ids.device):
            return _by_kernel(self, rows, width, choices)
        return _by_torch(self, rows, width, choices)


def _by_torch(packed: Packed, rows: Tensor, width: int, choices: int | None) -> dict[str, Tensor]:
    sequences = packed.first[rows]
    if choices is not None:
        sequences = sequences[:, None] + torch.arange(choices, device=rows.device)
    positions, lengths = torch.arange(width, device=rows.device), packed.lengths[sequences][..., None]
    if packed.left:
        positions = positions + lengths - width
    mask = (positions >= 0) & (positions < lengths)
    where = (packed.starts[sequences][..., None] + positions).clamp_(min=0, max=len(packed.ids) - 1)
    inputs = {
        "input_ids": torch.where(mask, packed.ids[where], packed.pad_id).long(),
        "attention_mask": mask.long(),
    }
    if packed.types is not None:
        inputs["token_type_ids"] = torch.where(mask, packed.types[where], 0).long()
    return inputs


def _by_kernel(packed: Packed, rows: Tensor, width: int, choices: int | None) -> dict[str, Tensor]:
    from calmix.kernels.padding import pad

    shape = (len(rows), width) if choices is None else (len(rows), choices, width)
    names = ("input_ids", "attention_mask", "token_type_ids")[: 2 if packed.types is None else 3]
    inputs = {name: torch.empty(shape, dtype=torch.int64, device=rows.device) for name in names}
    pack = (packed.first, packed.starts, packed.lengths, packed.ids, packed.types)
    out = (inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"))
    grid = (len(rows) * (choices or 1), -(-width // _PLACES))
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        pad[grid](rows.contiguous(), *pack, *out, packed.pad_id, width, choices or 1, BLOCK=_PLACES)
    return inputs


def agrees_with_torch(device: torch.device) -> bool:
    """Return whether batches of a few sequences, the last one short, and of choices are the same both ways."""
    lengths = torch.tensor([3, 140, 1, 2], device=device)
    ids = torch.arange(5, 151, dtype=torch.int32, device=device)
    starts, first = lengths.cumsum(0) - lengths, torch.arange(4, device=device)
    host = np.array([3, 140, 1, 2])
    plain = Packed(ids, None, starts, lengths, first, host, None, pad_id=1, limit=140, truncated=0)
    typed = replace(plain, types=(ids % 2).to(torch.int8), first=2 * first[:2], counts=np.array([2, 2]))
    asked = [(plain, torch.tensor([3, 0, 1, 1], device=device), None), (typed, first[:2].flip(0), 2)]
    for packed, rows, choices in asked:
        for width in (4, 144):
            ours, torchs = (cut(packed, rows, width, choices) for cut in (_by_kernel, _by_torch))
            if ours.keys() != torchs.keys() or not all(torch.equal(ours[name], torchs[name]) for name in torchs):
                return False
    return True


def usable_length(tokenizer: Any, config: Any, max_length: int | None) -> int:
    """Return how many tokens a sequence may have: what was asked, bounded by what the model can read."""
    # A tokenizer without a limit says 10^30, which no tokenizers library takes.
    limits = [min(int(tokenizer.model_max_length), 1_000_000)]
    shape = config.get_text_config()
    for name in ("max_position_embeddings", "max_seq_len"):
        positions = getattr(shape, name, None)
        if positions and positions > 0:
            limits.append(positions - 2 if counts_from_padding(config) else positions)
    if max_length is not None:
        limits.append(max_length)
    return min(limits)


def depends_on_padding(config: Any) -> bool:
    """Return whether an architecture gives a text other logits where it is filled up to the length of longer ones."""
    return config.model_type in _DEPEND_ON_PADDING


def counts_from_padding(config: Any) -> bool:
    """Return whether an architecture tells positions, and so which tokens are text, by the padding token's id."""
    return config.model_type in _COUNT_FROM_PADDING


def encode(examples: Examples, tokenizer: Any, *, max_length: int) -> Packed:
    """Return the packed token ids of every example; texts above `max_length` tokens lose their end."""
    counts = examples.choice_counts
    marks = tokenizer.num_special_tokens_to_add(pair=examples.kind != "text")
    if max_length <= marks:
        # The tokenizers library would not cut at all then.
        raise InputError(
            f"max_length {max_length} leaves no room for text: this tokenizer adds {marks} marks of its own"
        )
    parts = [
        _encoded(*_texts(examples, start, _CHUNK), tokenizer, max_length) for start in range(0, len(examples), _CHUNK)
    ]
    ids, types, sizes, cuts = zip(*parts, strict=True) if parts else ((_NONE,), (None,), (_NONE,), (_NONE,))
    lengths = np.concatenate(sizes).astype(np.int64)
    cut = np.concatenate(cuts).astype(bool)

    if not lengths.all():
        _refuse_empty(examples, int(np.flatnonzero(lengths == 0)[0]), counts)
    starts = np.cumsum(lengths) - lengths
    per_sample = np.ones(len(examples), dtype=np.int64) if counts is None else np.asarray(counts, dtype=np.int64)
    first = np.cumsum(per_sample) - per_sample
    return Packed(
        ids=torch.from_numpy(np.concatenate(ids)),
        types=None if types[0] is None else torch.from_numpy(np.concatenate(types)),
        starts=torch.from_numpy(starts),
        lengths=torch.from_numpy(lengths),
        first=torch.from_numpy(first),
        host_lengths=np.maximum.reduceat(lengths, first) if len(first) else lengths,
        counts=None if counts is None else per_sample,
        pad_id=tokenizer.pad_token_id,
        limit=max_length,
        truncated=int(np.logical_or.reduceat(cut, first).sum()) if len(first) else 0,
        left=tokenizer.padding_side == "left",
    )


def _texts(examples: Examples, start: int, count: int) -> tuple[list[str], list[str] | None]:
    """Return the sequences of some samples: their first texts, and their second ones where there are any."""
    table = examples.table.slice(start, count)
    texts = table["text"].to_pylist()
    if examples.kind == "text":
        return texts, None
    if examples.kind == "pair":
        return texts, table["text_b"].to_pylist()
    choices = table["choices"].to_pylist()
    return [text for text, row in zip(texts, choices, strict=True) for _ in row], [c for row in choices for c in row]


def _encoded(
    texts: list[str], seconds: list[str] | None, tokenizer: Any, max_length: int
) -> tuple[NDArray[np.int32], NDArray[np.int8] | None, NDArray[np.int64], NDArray[np.bool_]]:
    """Return the ids of sequences end to end, their types if the model reads them, lengths, and which were cut."""
    typed = seconds is not None and "token_type_ids" in tokenizer.model_input_names
    if tokenizer.is_fast:
        # What the tokenizer does when it is called, less the offsets in the text and the detour over dictionaries,
        # which take more time than the tokens.
        tokenizer.set_truncation_and_padding(
            padding_strategy=PaddingStrategy.DO_NOT_PAD,
            truncation_strategy=TruncationStrategy.LONGEST_FIRST,
            max_length=max_length,
            stride=0,
            pad_to_multiple_of=None,
            padding_side=None,
        )
        backend = tokenizer.backend_tokenizer
        backend.encode_special_tokens = tokenizer.split_special_tokens
        encodings = backend.encode_batch_fast(texts if seconds is None else list(zip(texts, seconds, strict=True)))
        rows = [encoding.ids for encoding in encodings]
        types = [encoding.type_ids for encoding in encodings] if typed else []
        cut = [bool(encoding.overflowing) for encoding in encodings]
    else:
        encoded = tokenizer(
            texts, seconds, truncation="longest_first", max_length=max_length, return_attention_mask=False
        )
        rows, types = encoded["input_ids"], encoded["token_type_ids"] if typed else []
        cut = [False] * len(rows)
    return (
        np.fromiter(chain.from_iterable(rows), dtype=np.int32),
        np.fromiter(chain.from_iterable(types), dtype=np.int8) if typed else None,
        np.array([len(row) for row in rows], dtype=np.int64),
        np.array(cut, dtype=bool),
    )


def _refuse_empty(examples: Examples, sequence: int, counts: NDArray[np.int64] | None) -> None:
    sample = sequence if counts is None else int(np.searchsorted(np.cumsum(counts), sequence, side="right"))
    where = examples.source or "the data"
    raise InputError(f"{where}: the text of {examples.ids[sample]!r} has not one token for this tokenizer: drop it")
