"""Networks without their weights: enough to tell what fits them, and how large they are."""

from functools import lru_cache

import torch
from torch import nn

from calmix.errors import InputError
from calmix.models.loading import begins_random, class_for_texts, tokenizer_of
from calmix.models.vision import class_for_images, refuse_words
from calmix.models.wordlevel import is_sentence_cnn

__all__ = ["outline"]


@lru_cache(maxsize=32)
def outline(name: str, kind: str) -> nn.Module | None:
    """Return the network that would be trained on data of a kind (that of `Examples`), without its weights.

    Refuses what cannot be: a folder that holds no model, an architecture that is not for such data, a model of texts
    without a tokenizer. None where no more can be told, as of a sentence CNN, whose words are the training set's.
    """
    if is_sentence_cnn(name):
        if kind == "image":
            refuse_words(name)
        if kind == "choices":
            raise InputError("a sentence CNN reads texts or pairs of texts, not choices data")
        return None
    if kind == "image" and begins_random(name):
        from calmix.models.convnets import convnet

        with torch.device("meta"):
            return convnet(name, label_names=("0", "1"), channels=3)
    if kind == "image":
        auto, config = class_for_images(name)
    else:
        auto, config = class_for_texts(name, choices=kind == "choices")
        tokenizer_of(name)
    try:
        with torch.device("meta"):
            network: nn.Module = auto.from_config(config)
    except Exception:  # one that is made in another way, or not at all: loading it will tell
        return None
    return network
