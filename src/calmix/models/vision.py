"""Classifiers of images: any of transformers', pretrained, and networks for small images from random weights."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models.anatomy import anatomy
from calmix.models.folding import forget_temperature
from calmix.models.loading import (
    SMALL,
    begins_random,
    called,
    config_of,
    keep_head,
    known_labels,
    line_of,
    name_classes,
    refuse_other_heads,
    weights_of,
)
from calmix.models.pixels import Preparation, common_size, read_preparation
from calmix.models.wordlevel import is_sentence_cnn

__all__ = ["class_for_images", "load_for_images", "load_trained_for_images", "preparation_for", "refuse_words"]


def preparation_for(name: str, examples: Examples, *, size: int | None = None) -> tuple[Preparation, bool]:
    """Return how images are prepared for a network, and whether mean and deviation are still to be measured.

    Pretrained networks say it themselves. The others read images in the size they have, if that is small, or in
    `size` × `size` pixels, and as many channels as they have.
    """
    if begins_random(name):
        grey = examples.images.are_grey
        height, width = (size, size) if size else common_size(examples)
        channels = 1 if grey else 3
        return Preparation(height, width, (0.0,) * channels, (1.0,) * channels), True
    refuse_words(name)
    config = config_of(name)
    told = read_preparation(name, config)
    if told is None:
        own = size or getattr(config, "image_size", None)
        height, width = (own, own) if isinstance(own, int) else tuple(own) if own else common_size(examples)
        channels = int(getattr(config, "num_channels", 3))
        return Preparation(height, width, (0.0,) * channels, (1.0,) * channels), True
    if size:
        told = replace(told, height=size, width=size, edge=told.edge and round(told.edge * size / told.height))
    return told, False


def refuse_words(name: str) -> None:
    """Refuse a network that reads words."""
    if is_sentence_cnn(name):
        raise InputError(f"{name}: is a network for texts, and these are images; give {', '.join(SMALL)}, or another")


def load_for_images(name: str, *, label_names: tuple[str, ...], how: Preparation) -> tuple[nn.Module, bool]:
    """Return a classifier of images with a head for these labels, in float32, and whether that head is trained.

    `name` is one of `SMALL`, a folder, or a name on the Hugging Face hub. What is not pretrained is drawn from
    torch's global random state: seed it first.
    """
    if begins_random(name):
        from calmix.models.convnets import convnet

        model: nn.Module = convnet(name, label_names=label_names, channels=how.channels)
        trained = False
    else:
        model, trained = _pretrained(name, label_names)
    _check_reads(name, model, how)
    return model, trained


def class_for_images(name: str) -> tuple[Any, Any]:
    """Return the class of transformers' that a checkpoint is trained as, to classify images, and its configuration."""
    from transformers import AutoModelForImageClassification

    config = config_of(name)
    if type(config) not in AutoModelForImageClassification._model_mapping:
        raise InputError(
            f"{called(name)}: reads no images (transformers has no image classification model for architecture "
            f"{config.model_type!r}); give {', '.join(SMALL)}, or a pretrained one of images"
        )
    return AutoModelForImageClassification, config


def _pretrained(name: str, label_names: tuple[str, ...]) -> tuple[nn.Module, bool]:
    auto, config = class_for_images(name)
    before = known_labels(config)
    name_classes(config, label_names)
    forget_temperature(config)
    model, absent, resized = weights_of(auto, name, config=config, ignore_mismatched_sizes=True)
    drawn = absent | resized
    body = f"{model.base_model_prefix}."
    if missing := sorted(key for key in drawn if key.startswith(body) and "pooler" not in key):
        raise InputError(
            f"{name}: its weights lack {missing[0]} and {len(missing) - 1} more of the encoder's: "
            f"they are not those of a {config.model_type} model"
        )
    is_new = f"{anatomy(model).head}.weight" in drawn
    return model, not is_new and keep_head(model, before, label_names)


def _check_reads(name: str, model: nn.Module, how: Preparation) -> None:
    """Refuse a network that cannot read images of this size; `anatomy` refuses one without a head."""
    anatomy(model)
    image = torch.zeros(1, how.channels, how.height, how.width)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(pixel_values=image)
    except (ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"{name}: cannot read images of {how.width} × {how.height} pixels with {how.channels} channels "
            f"({line_of(error)})"
        ) from None
    model.train(was_training)


def load_trained_for_images(name: str, config: Any) -> tuple[nn.Module, Preparation]:
    """Return a trained classifier of images, in evaluation mode, and how its images are prepared."""
    from transformers import AutoModelForImageClassification

    refuse_other_heads(name, config)
    how = read_preparation(name, config)
    if how is None:
        raise InputError(f"{name}: has no preprocessor_config.json, so nobody knows how to prepare images")
    model, *missing = weights_of(AutoModelForImageClassification, name, config=config)
    if drawn := set().union(*missing):
        raise InputError(f"{name}: its weights lack {min(drawn)}, so it was never trained as a classifier")
    return model.eval(), how
