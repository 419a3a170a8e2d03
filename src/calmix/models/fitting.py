"""A head fitted in one call, for training loops of one's own."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from calmix.data import Examples
from calmix.data.origin import closest, listed, shown
from calmix.data.weighting import ClassWeights, class_weights_of
from calmix.errors import InputError
from calmix.models.anatomy import anatomy, reads_pixels
from calmix.models.classifier import Text, examples_of
from calmix.models.encoding import Packed, encode, usable_length
from calmix.models.fitted_head import FACTOR, fit_head_to
from calmix.models.loading import is_multiple_choice, label_names_of, reads_segments, refuse_other_heads
from calmix.models.mean_pooling import Pooling, add_mean_pooling

__all__ = ["HeadFit", "fit_head"]

Labels = Sequence[Any] | NDArray[Any] | torch.Tensor


@dataclass(frozen=True)
class HeadFit:
    """What came of fitting a head."""

    rows: int
    """How many rows it was fitted to."""
    accuracy: float
    """How often it is right at full size: about the dev rows; without any, about training rows, each told of by a head
    that was fitted without it. NaN where no label has two rows."""
    strength: float
    """The C of the logistic regression, for features of mean length 1."""
    factor: float
    """What the head was multiplied by afterwards."""
    pooling: Pooling
    """What the head reads of a text now: the `mean` of its tokens, or what it always read."""


def fit_head(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[Text],
    labels: Labels,
    *,
    dev: tuple[Sequence[Text], Labels] | None = None,
    class_weights: ClassWeights | None = None,
    pooling: Pooling = "mean",
    factor: float = FACTOR,
    max_length: int = 256,
    progress: Callable[[int], None] | None = None,
) -> HeadFit:
    """Fit a classifier's head to what its network says of labelled texts, and make it small; return what came of it.

    The model is changed in place and stays an ordinary one, to be trained by any loop, saved and loaded as before. Call
    this before the optimiser is made, which else would not know of the layer that is added, and before the model is
    wrapped or compiled.

        model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=3)
        calmix.fit_head(model, tokenizer, texts, labels)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

    Args:
        model: a text classifier of transformers', on any device.
        tokenizer: its tokenizer.
        texts: texts, pairs (text, text), or, for a multiple-choice model, (text, [choices]).
        labels: of each its class as a number or by the model's name for it; of choices, the number of the right one.
        dev: texts and labels to choose the strength of the penalty by; without them it is chosen by cross-fitting.
        class_weights: `balanced`, or weights by label name, 1 for the others.
        pooling: `mean` adds a layer that averages a single text's tokens, where the architecture allows it, and sets
            the dense layer before the head, where there is one, to hand the mean on. `first` leaves all but the head.
        factor: the head's size in the end; at 1 it predicts best as it stands, and learns less when it is fine-tuned.
        max_length: tokens per text at most; longer ones are cut.
        progress: called with the number of rows after each batch that the network has read.
    """
    name = type(model).__name__
    _check_model(model, name, tokenizer)
    if pooling not in ("mean", "first"):
        raise InputError(f"pooling is 'mean' or 'first', not {pooling!r}")
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"factor must be a positive number, not {factor}")
    train = _labelled(model, texts, labels, "the training data")
    if train.kind != "choices" and len(np.unique(train.labels)) < 2:
        only = train.label_names[train.labels[0]]
        raise InputError(f"every row has the same label, {shown(only)}: there is nothing to tell apart")
    weights = class_weights_of(train, class_weights)
    held = None
    if dev is not None:
        if not (isinstance(dev, tuple | list) and len(dev) == 2):
            raise InputError("dev must be a pair: texts and their labels")
        held = _labelled(model, *dev, "the dev data")
        if held.kind != train.kind:
            raise InputError(f"the dev data hold {held.kind} data, but the training data {train.kind}")
    packed = _encoded(model, tokenizer, train, max_length)
    dev_rows = None if held is None else (_encoded(model, tokenizer, held, max_length), held.labels)
    single = pooling == "mean" and train.kind == "text"  # pairs and choices have no meaning of their own to average
    averaged = single and add_mean_pooling(model)
    found = fit_head_to(
        model,
        packed,
        torch.from_numpy(train.labels),
        class_weights=None if weights is None else torch.from_numpy(weights).float(),
        dev=dev_rows,
        set_inner=single,
        progress=progress,
    )
    found.put_into(model, factor)
    return HeadFit(found.rows, found.accuracy, found.strength, factor, "mean" if averaged else "first")


def _check_model(model: nn.Module, name: str, tokenizer: Any) -> None:
    """Refuse what is no classifier of texts; agree on the padding token, where the model does not know any."""
    anatomy(model)
    config: Any = model.config
    if reads_pixels(model):
        raise InputError(f"{name}: reads images; fit_head is for texts, `calmix.train` fits the heads of both")
    if not is_multiple_choice(model):
        refuse_other_heads(name, config)
    if tokenizer.pad_token_id is None:
        raise InputError("the tokenizer has no padding token; set tokenizer.pad_token, to tokenizer.eos_token say")
    for part in (config, config.get_text_config()):
        if getattr(part, "pad_token_id", None) is None:  # without it a decoder finds no text's end
            part.pad_token_id = tokenizer.pad_token_id


def _labelled(model: nn.Module, texts: Any, labels: Any, source: str) -> Examples:
    """Return texts with labels as the model numbers them."""
    examples = examples_of(texts, caller="fit_head", purpose="fit a head to")
    if (examples.kind == "choices") != is_multiple_choice(model):
        wants = "(text, [choices])" if is_multiple_choice(model) else "texts, or pairs of them"
        raise InputError(f"{source}: {type(model).__name__} reads {wants}, and this is {examples.kind} data")
    if isinstance(labels, str) or not (hasattr(labels, "tolist") or isinstance(labels, Sequence)):
        raise InputError(f"{source}: labels are a list, one of each text, not {shown(labels)}")
    found = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if not isinstance(found, list) or len(found) != len(examples):
        raise InputError(f"{source}: {len(examples)} texts, but {np.size(found) if found else 0} labels")
    names, counts = label_names_of(model), examples.choice_counts
    numbers = [
        _number(label, names, len(names) if counts is None else int(counts[row]), f"row {row + 1} of {source}")
        for row, label in enumerate(found)
    ]
    return replace(examples, labels=np.array(numbers, dtype=np.int64), label_names=names, source=source)


def _number(label: Any, names: Sequence[str], most: int, place: str) -> int:
    """Return the number of a label, which may be a name."""
    if isinstance(label, str) and names:
        if label in names:
            return names.index(label)
        raise InputError(
            f"unknown label {shown(label)} in {place}{closest(label, names)} (the model knows {listed(names)}: "
            "load it with id2label and label2id)"
        )
    if not isinstance(label, Integral):
        raise InputError(f"label {shown(label)} in {place} is no number{', and no name of a label' if names else ''}")
    if not 0 <= int(label) < most:
        what = "labels" if names else "choices"
        raise InputError(f"label {label} in {place} is none of the {most} {what}, which count from 0")
    return int(label)


def _encoded(model: nn.Module, tokenizer: Any, examples: Examples, max_length: int) -> Packed:
    words = copy.copy(tokenizer)
    if not reads_segments(model):
        words.model_input_names = [key for key in words.model_input_names if key != "token_type_ids"]
    return encode(examples, words, max_length=usable_length(words, model.config, max_length))
