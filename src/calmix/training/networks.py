"""The network of a run, and its data as that network reads them."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from calmix.data import Examples
from calmix.data.remembering import COLUMNS
from calmix.data.reusing import reused
from calmix.errors import InputError
from calmix.mixing import fill_tokens
from calmix.models import (
    KIND,
    Packed,
    Pixels,
    Pooling,
    Preparation,
    depends_on_padding,
    encode,
    is_sentence_cnn,
    load_for_images,
    load_with_head,
    measured,
    pack_images,
    preparation_for,
    spelling_notes,
    usable_length,
    word_notes,
)
from calmix.models.loading import Loading

__all__ = ["Loaded", "load_network"]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A network to train, and what goes with it."""

    network: nn.Module
    reader: Any
    """Its tokenizer, set to cut texts where we do; of images, their `Preparation`."""
    packed: dict[str, Packed | Pixels]
    """Each data set as the network reads it."""
    fill: Mapping[str, int]
    """What pairs of texts may be padded with."""
    notes: list[str]
    trained_head: bool
    """Whether its head comes from the checkpoint, trained for these very labels."""
    reads_mean: bool = False
    """Whether its head is to read the mean of a text's tokens: not where the checkpoint's own had learnt otherwise."""


def load_network(
    pretrained: str,
    sets: Mapping[str, Examples],
    *,
    seed: int,
    max_length: int,
    image_size: int | None = None,
    stream: bool | None = None,
    gradient_checkpointing: bool = False,
    pooling: Pooling = "first",
    columns: Mapping[str, str] | None = None,
) -> Loaded:
    """Return a network with a head for the labels of `sets["train"]`, and all sets read for it.

    A head that the checkpoint does not have is drawn from the seed; single texts are then pooled as asked. The
    network's config will say which `columns` were named.
    """
    train = sets["train"]
    if train.kind == "image":
        loaded = _for_images(pretrained, sets, seed, image_size, stream)
    else:
        # Two texts that are read together have no meaning of their own to take the mean of.
        loaded = _for_texts(pretrained, sets, seed, max_length, pooling if train.kind == "text" else "first")
    if train.kind != "choices":
        setattr(loaded.network.config, KIND, train.kind)
    # Set, even to nothing: the checkpoint that was read may have been trained on other tables.
    if columns or hasattr(loaded.network.config, COLUMNS):
        setattr(loaded.network.config, COLUMNS, dict(columns or {}))
    if gradient_checkpointing:
        try:
            loaded.network.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        except ValueError:
            raise InputError(f"{pretrained}: its architecture cannot recompute activations") from None
    return loaded


def _for_texts(pretrained: str, sets: Mapping[str, Examples], seed: int, max_length: int, pooling: Pooling) -> Loaded:
    names, choices = sets["train"].label_names, sets["train"].kind == "choices"

    def load() -> Loading:
        torch.manual_seed(seed)
        return load_with_head(pretrained, label_names=names, choices=choices, examples=sets["train"], pooling=pooling)

    words = f"{pretrained} {sets['train'].digest()}" if is_sentence_cnn(pretrained) else pretrained
    loading = reused("network", (words, names, choices, seed, pooling), load, copied=_copied)
    network, tokenizer = loading.model, loading.tokenizer
    # Wherever the checkpoint goes, texts are cut where they were cut in training.
    limit = tokenizer.model_max_length = usable_length(tokenizer, network.config, max_length)
    packed = {
        name: reused(
            "tokens", (words, limit, examples.digest()), partial(encode, examples, tokenizer, max_length=limit)
        )
        for name, examples in sets.items()
    }
    read = partial(spelling_notes, sets["train"], packed["train"], tokenizer)
    notes = word_notes(pretrained, network) + reused("spelling", (words, limit, sets["train"].digest()), read)
    if cut := [f"{name}: {p.truncated} of {len(p)}" for name, p in packed.items() if p.truncated]:
        notes = [*notes, f"{', '.join(cut)} texts are longer than {limit} tokens and were cut (--max-length)"]
    config: Any = network.config
    reads_mean = loading.is_bare and pooling == "mean"
    if depends_on_padding(config):
        kind = config.model_type
        note = f"{kind} answers otherwise to a text beside longer ones: predict texts of one length together, as we do"
        notes = [*notes, note]
    return Loaded(network, tokenizer, dict(packed), fill_tokens(tokenizer), notes, loading.trained_head, reads_mean)


def _for_images(
    pretrained: str, sets: Mapping[str, Examples], seed: int, size: int | None, stream: bool | None
) -> Loaded:
    train = sets["train"]
    how, unmeasured = preparation_for(pretrained, train, size=size)

    def packed_train() -> tuple[Pixels, Preparation]:
        pixels = pack_images(train, how, stream=stream)
        return measured(pixels, how) if unmeasured else (pixels, how)

    # The network first: whether it can read such images is known before any is decoded.
    def load() -> tuple[nn.Module, bool]:
        torch.manual_seed(seed)
        return load_for_images(pretrained, label_names=train.label_names, how=how)

    key = (pretrained, train.label_names, how, seed)
    network, trained_head = reused("network", key, load, copied=copy.deepcopy)
    pixels, how = reused("pixels", (how, unmeasured, stream, train.digest()), packed_train)
    packed: dict[str, Packed | Pixels] = {"train": pixels}
    for name, examples in sets.items():
        if name != "train":
            pack = partial(pack_images, examples, how, stream=stream)
            packed[name] = reused("pixels", (how, stream, examples.digest()), pack)
    notes = _size_notes(train, how)
    if pixels.stream is not None and not stream:
        notes.append("images are more than memory holds: they are decoded anew in every epoch")
    return Loaded(network, how, packed, {}, notes, trained_head)


def _size_notes(train: Examples, how: Preparation) -> list[str]:
    width, height = train.images.size(0)
    if (height, width) == (how.height, how.width):
        return []
    return [f"images are scaled to {how.width} × {how.height} pixels (--image-size)"]


def _copied(loading: Loading) -> Loading:
    """Return a model to change, and a tokenizer whose settings, though not its vocabulary, are its own."""
    return replace(loading, model=copy.deepcopy(loading.model), tokenizer=copy.copy(loading.tokenizer))
