"""Logits for many examples: sorted by length, large batches, no gradient, in the examples' own order."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.models.averaging import mean_logits
from calmix.models.dropping import Dropout, dropping
from calmix.models.encoding import Packed, depends_on_padding
from calmix.models.hastening import hastened
from calmix.models.locks import exclusive, shared
from calmix.models.pixels import Pixels

__all__ = ["Arithmetic", "Visit", "predict_logits"]

Arithmetic = Literal["fp32", "bf16"]

Visit = Callable[[NDArray[np.int64], dict[str, Tensor]], None]

# Tokens from which on it pays to lay out the weights for the processor.
_MANY = 2048


def predict_logits(
    model: nn.Module,
    packed: Packed | Pixels,
    *,
    rows: NDArray[np.int64] | None = None,
    tokens: int | None = None,
    precision: Arithmetic = "fp32",
    dropout: Dropout | None = None,
    progress: Callable[[int], None] | None = None,
    visit: Visit | None = None,
) -> NDArray[np.float32]:
    """Return the logits [samples, classes or choices]; choices a row does not have are −inf.

    `rows` asks for some samples only, in that order. `tokens` bounds the padded size of a batch (unless it is one
    long text), so that memory does not depend on the texts' lengths. In bf16, faster where the hardware
    has it, logits keep some three digits. With `dropout` they are the logarithm of the mean probabilities of its
    passes. The model is put in evaluation mode for the time being. Where the logits of a text depend on how far it is
    filled up, those of one length are predicted together. Several threads may share a model: calls that change it
    for their time (MC-dropout, many texts on a processor) have it alone, all others are made at the same time.

    `visit` is called after each batch, with where its samples stand among those asked for and with its inputs: hooks
    that collect what passes inside the network can then put it in order. Every token's last hidden state is right then.
    """
    device = next(model.parameters()).device
    packed = packed.to(device)
    most = tokens or packed.most(device)
    counts = packed.counts
    alike = isinstance(packed, Packed) and depends_on_padding(model.config)
    asked = np.arange(len(packed)) if rows is None else rows
    keys = (packed.host_lengths[asked],) if counts is None else (packed.host_lengths[asked], counts[asked])
    order = np.lexsort(keys)[::-1]  # longest first: if memory runs out, it does so at once
    columns = None if counts is None or not len(counts) else int(counts.max())
    if not len(asked):
        return np.empty((0, columns or 0), dtype=np.float32)
    out: NDArray[np.float32] | None = None
    start = 0
    lower = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    drop = nullcontext() if dropout is None else dropping(model, dropout)
    passes = 1 if dropout is None else dropout.passes
    quick: AbstractContextManager[None] | None = None
    if device.type == "cpu" and precision == "fp32" and dropout is None and isinstance(packed, Packed):
        sequences = 1 if counts is None else counts[asked]
        if (packed.host_lengths[asked] * sequences).sum() >= _MANY:
            sample = partial(_sample, packed, asked[order[[len(order) // 2, -1]]])
            quick = hastened(model, sample, whole=visit is not None)
    with shared(model):  # while another call has it alone, its mode is that of that call
        was_training = model.training
    changes = was_training or dropout is not None or quick is not None or visit is not None
    turn = exclusive(model) if changes else shared(model)
    with turn, _evaluating(model), torch.inference_mode(), lower, drop, quick or nullcontext():
        while start < len(order):
            longest = asked[order[start : start + 1]]
            width = packed.width(longest, 1) if alike else packed.width(longest)
            choices = None if counts is None else int(counts[longest[0]])
            size = max(1, most // (width * (choices or 1)))
            places = order[start : start + size]
            if alike:
                places = places[packed.host_lengths[asked[places]] == width]
            if counts is not None:
                places = places[counts[asked[places]] == choices]
            inputs = packed.batch(torch.from_numpy(asked[places]).to(device), width=width, choices=choices)
            logits = mean_logits([model(**inputs).logits for _ in range(passes)]).cpu().numpy()
            if out is None:
                out = np.full((len(asked), columns or logits.shape[1]), -np.inf, dtype=np.float32)
            out[places, : logits.shape[1]] = logits
            if visit is not None:
                visit(places, inputs)
            start += len(places)
            if progress is not None:
                progress(len(places))
    assert out is not None
    return out


def _sample(packed: Packed, rows: NDArray[np.int64]) -> dict[str, Tensor]:
    """Return the inputs of two samples; of one where they may have other numbers of choices."""
    rows = rows if packed.counts is None else rows[:1]
    choices = None if packed.counts is None else int(packed.counts[rows[0]])
    return packed.batch(torch.from_numpy(rows), width=packed.width(rows), choices=choices)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
