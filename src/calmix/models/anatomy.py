"""Where the embeddings, the layers and the head of a transformers classifier, of texts or of images, are."""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from calmix.errors import InputError

__all__ = ["Anatomy", "anatomy", "averages_scores", "head_of", "reads_pixels", "scale_head"]


@dataclass(frozen=True)
class Anatomy:
    """Module paths inside one model: everything calmix needs to know about an architecture."""

    embeddings: str
    """The lookup from token ids to vectors, before positions are added; empty for images, which are pixels there, and
    where a network has none."""
    layers: tuple[str, ...]
    """The encoder (or decoder) layers, first to last; a module that serves as several layers (ALBERT) is named for each
    of them. Networks of convolutions have their stages instead, between which images become smaller."""
    head: str
    """The last linear layer: what it reads is the *head input*, what it writes are the logits."""
    inner: str | None
    """The dense layer between the encoder and the head, where there is one (a pooler, mostly)."""
    rows: int = 0
    """The axis of the rows in what embeddings and layers return."""
    reads_once: bool = True
    """Whether embeddings and layers see all that is read of a text: not where a decoder reads it again."""


def anatomy(model: nn.Module) -> Anatomy:
    """Return where the parts of a transformers sequence, multiple-choice or image classifier are.

    Hardly anything is asked by architecture name: the embeddings are what the model says they are, the layers are the
    list of modules nearest to them that is as long as the configuration says, and the head is the last linear layer
    outside of the encoder.
    """
    names = {id(module): name for name, module in model.named_modules()}
    kind = type(model).__name__
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    pixels = reads_pixels(model)
    if base is None or not hasattr(model, "get_input_embeddings"):
        raise InputError(f"{kind} is not a transformers classifier with an encoder inside: calmix cannot train it")

    config: Any = model.config
    embeddings = "" if pixels else names.get(id(_embeddings_of(model)), "")
    inside = {id(module) for module in base.modules()}
    outside = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and id(m) not in inside]
    if not outside:
        raise InputError(f"{kind} has no linear layer after its encoder: calmix finds no head to train")
    inner = outside[-2] if len(outside) > 1 else None
    if inner is None:
        pooler = [n for n, m in base.named_modules() if n.startswith("pooler") and isinstance(m, nn.Linear)]
        inner = f"{prefix}.{pooler[-1]}" if pooler else None
    return Anatomy(
        embeddings=embeddings,
        layers=_layers_in(model, prefix, embeddings),
        head=outside[-1],
        inner=None if averages_scores(config) else inner,
        rows=int(config.model_type == "xlnet"),
        reads_once=pixels or not config.is_encoder_decoder,
    )


def _embeddings_of(model: nn.Module) -> nn.Module | None:
    """Return the lookup from token ids to vectors, if there is one."""
    try:
        found = model.get_input_embeddings()  # type: ignore[operator]
    except NotImplementedError:  # CANINE's, which looks characters up by several hashes
        return None
    return found if isinstance(found, nn.Module) else None


def _layers_in(model: nn.Module, base: str, embeddings: str) -> tuple[str, ...]:
    """Return the paths of an encoder's layers, one for each: of networks that also see, those of its texts."""
    config: Any = model.config
    stages = getattr(config, "depths", None) if reads_pixels(model) else None
    shape = config if config.is_encoder_decoder else config.get_text_config()
    depth = len(stages) if stages else getattr(shape, "num_hidden_layers", None)
    groups = getattr(shape, "num_hidden_groups", None)
    lists = {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    for length in (depth, groups):
        stacks = [name for name, found in lists.items() if found == length and name.startswith(f"{base}.")]
        if stacks and depth and length:
            nearest = max(stacks, key=lambda name: _parts_shared(name, embeddings))
            # XLM keeps the parts of its layers in lists of their own, side by side and in the order of their use.
            parent = nearest.rpartition(".")[0]
            stack = [name for name in stacks if name.rpartition(".")[0] == parent][-1]
            return tuple(f"{stack}.{layer * length // depth}" for layer in range(depth))
    return ()


def _parts_shared(path: str, other: str) -> int:
    """Return how many modules two paths have in common, from the first on."""
    pairs = zip(path.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def averages_scores(config: Any) -> bool:
    """Return whether each token is scored, and a text's logits are the mean over its tokens (EuroBERT)."""
    return getattr(config, "classifier_pooling", None) == "late"


def reads_pixels(model: nn.Module) -> bool:
    """Return whether a model is a classifier of images."""
    return getattr(model, "main_input_name", "") == "pixel_values"


def head_of(model: nn.Module) -> nn.Linear:
    """Return the last linear layer of a classifier."""
    head = model.get_submodule(anatomy(model).head)
    assert isinstance(head, nn.Linear)
    return head


@torch.no_grad()
def scale_head(model: nn.Module, factor: float) -> None:
    """Multiply the weights and the bias of a classifier's head, in place."""
    head = head_of(model)
    head.weight.mul_(factor)
    if head.bias is not None:
        head.bias.mul_(factor)
