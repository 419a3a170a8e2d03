"""How much GPU memory the runs of a study need, told before they are made: so that small ones share a GPU."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow.compute as pc
from torch import nn

from calmix.data import Examples
from calmix.errors import InputError
from calmix.mixing import RECIPES, choose
from calmix.models import encode, is_sentence_cnn, outline, resolve, usable_length
from calmix.models.loading import tokenizer_of
from calmix.study.grid import Library, Spec
from calmix.training.defaults import with_defaults

__all__ = ["Size", "bytes_needed", "needed_by", "share_of", "workers_for"]

_GIB = 2**30
# A GPU is asked for in so many parts.
_PARTS = 8
# The CUDA context, about half a GiB on an H200, and what the libraries keep for themselves.
_CONTEXT = _GIB
# What is counted below, times this: gradients of activations, room between blocks of memory, pools of captured graphs.
_MARGIN = 2.0
# For each layer of each captured graph. Its kernels are kept outside of torch's memory; nobody has measured how large.
_GRAPH = 2 * 2**20
# Widths of batches are multiples of this on a GPU, and each has its graph.
_WIDTH = 8
# Tokens that are predicted at once on a GPU, and the numbers that a layer holds of each, for each of its width.
_PREDICTED, _HELD = 16_384, 16
# How often the activations of a batch are kept by a recipe; tested. Of one's own recipes nothing is known.
_PASSES = {"on-off-manifold": 5}
_PASSES_OF_OWN = 5
# Texts that are tokenised to tell how long they are.
_SAMPLE = 64
# Words of a training set that a sentence CNN reads at most, and the numbers in a word's vector.
_WORDS, _VECTOR = 400_000, 300


@dataclass(frozen=True)
class Size:
    """What tells how much memory a network takes."""

    parameters: int
    layers: int
    hidden: int
    """Numbers for each token."""


def bytes_needed(
    size: Size,
    *,
    batch: int,
    length: int,
    half: bool = True,
    seeds: int = 1,
    passes: int = 1,
    variants: int = 1,
    rows: int = 0,
) -> int:
    """Return about how much GPU memory a process needs that trains so many seeds in the same steps; rather too much.

    Args:
        size: of the network.
        batch: sequences per forward, of one seed.
        length: tokens of the longest batch.
        half: whether it computes in bf16.
        seeds: runs that are trained side by side.
        passes: how often the recipe keeps a batch's activations.
        variants: kinds of steps that are captured.
        rows: of the training set, which stays on the device.
    """
    # In float32: weights, now and best, gradients, AdamW's two moments; in bf16 also the copies and their gradients.
    weights = size.parameters * (24 if half else 20)
    # What is kept for the backward pass, counted on the tensors that torch saves of an encoder of BERT's kind with
    # attention weights (heads of 32 numbers), its embeddings as one layer more: kernels of GPUs mostly keep less.
    kept = (size.layers + 1) * batch * length * size.hidden * (18 + 3 * length / 32) * (2 if half else 4)
    graphs = math.ceil(length / _WIDTH) * variants * size.layers * _GRAPH
    predicting = _PREDICTED * size.hidden * _HELD * 4
    data = rows * (8 * length + 512)
    return math.ceil(_CONTEXT + _MARGIN * seeds * (weights + passes * kept) + graphs + predicting + seeds * data)


def share_of(needed: int | None, memory: int | None) -> float:
    """Return the share of a GPU to ask for, in eighths: at least one, and the whole where either is not known."""
    if needed is None or not memory:
        return 1.0
    return min(_PARTS, max(1, math.ceil(needed / memory * _PARTS))) / _PARTS


def needed_by(group: Sequence[Spec], library: Library) -> int | None:
    """Return about how much GPU memory runs need that differ in their seed alone; None where it cannot be told.

    That is so for images, and for networks whose configuration does not say how deep and wide they are.
    """
    spec = group[0]
    train = library.sets(spec.task, spec.seed).train
    found = None if train.kind == "image" else _network(library.model(spec.model), train.kind)
    if found is None:
        return None
    size, network = found
    pretrained = resolve(library.model(spec.model))
    training = with_defaults(
        {"batch_size": None, **spec.training},
        pretrained,
        rows=len(train),
        classes=len(train.label_names),
    )
    counts = train.choice_counts
    choices = 1 if counts is None or not len(counts) else int(counts.max())
    length = training.get("max_length", 256)
    if network is not None:
        length = _longest(train, _tokenizer(resolve(library.model(spec.model))), network.config, length)
    needed = bytes_needed(
        size,
        batch=math.ceil(training["batch_size"] / training.get("accumulate", 1)) * choices,
        length=length,
        half=training.get("precision", "auto") != "fp32",
        # Maps with threshold samples are made one after the other.
        seeds=len(group) if spec.what == "train" else 1,
        passes=_PASSES.get(spec.recipe, 1) if spec.recipe in RECIPES else _PASSES_OF_OWN,
        variants=_variants(spec, network),
        rows=len(train),
    )
    if "teacher" in spec.needs:
        teacher = _network(library.model(spec.needs["teacher"].model), train.kind)
        if teacher is None:
            return None
        needed += len(group) * 8 * teacher[0].parameters + _PREDICTED * teacher[0].hidden * _HELD * 4
    return needed


def workers_for(groups: Iterable[Sequence[Spec]], library: Library, free: int | None) -> int:
    """Return how many processes can make these runs at once on a GPU with so much memory; 1 if there is none."""
    needs = [needed_by(group, library) for group in groups]
    if not free or not needs or None in needs:
        return 1
    return max(1, min(len(needs), free // max(need for need in needs if need is not None)))


def _longest(train: Examples, tokenizer: Any, config: Any, most: int) -> int:
    """Return how many tokens the longest of the texts with most characters has, cut as training cuts it."""
    characters = np.zeros(len(train), dtype=np.int64)
    for name in ("text", "text_b", "choices"):
        if name in train.table.column_names:
            column = train.table[name]
            texts = pc.binary_join(column, " ") if name == "choices" else column
            characters += np.asarray(pc.utf8_length(texts).fill_null(0))
    rows = np.argsort(characters)[-_SAMPLE:]
    limit = usable_length(tokenizer, config, most)
    return int(encode(train.take(rows), tokenizer, max_length=limit).host_lengths.max(initial=1))


@lru_cache(maxsize=32)
def _tokenizer(name: str) -> Any:
    return tokenizer_of(name)


def _variants(spec: Spec, network: nn.Module | None) -> int:
    if network is None or spec.recipe not in RECIPES:
        return 1
    try:
        return choose(spec.recipe, spec.options).variants(network)
    except InputError:  # of a run that is known to fail
        return 1


def _network(name: str, kind: str) -> tuple[Size, nn.Module | None] | None:
    """Return the size of a network for texts, and the network without its weights; None where it does not say."""
    if is_sentence_cnn(name):
        return Size(_WORDS * _VECTOR, 1, _VECTOR), None
    try:
        network = outline(resolve(name), kind)
    except InputError:  # of runs that are finished, or known to fail
        return None
    config: Any = getattr(network, "config", None)
    layers, hidden = (getattr(config, key, None) for key in ("num_hidden_layers", "hidden_size"))
    if network is None or not isinstance(layers, int) or not isinstance(hidden, int):
        return None
    wide = getattr(config, "intermediate_size", None)
    parameters = sum(weight.numel() for weight in network.parameters())
    return Size(parameters, layers, max(hidden, wide // 4 if isinstance(wide, int) else 0)), network
