"""Where the embeddings, the layers and the head of a transformers classifier, of texts or of images, are."""

from dataclasses import dataclass

from torch import nn

from calmix.errors import InputError

__all__ = ["Anatomy", "anatomy", "head_of", "reads_pixels"]


@dataclass(frozen=True)
class Anatomy:
    """Module paths inside one model: everything calmix needs to know about an architecture."""

    embeddings: str
    """The lookup from token ids to vectors, before positions are added; empty for images, which are pixels there."""
    layers: tuple[str, ...]
    """The encoder (or decoder) layers, first to last; empty where layers share one module (ALBERT). Networks of
    convolutions have their stages instead, between which images become smaller."""
    head: str
    """The last linear layer: what it reads is the *head input*, what it writes are the logits."""
    inner: str | None
    """The dense layer between the encoder and the head, where there is one (a pooler, mostly)."""


def anatomy(model: nn.Module) -> Anatomy:
    """Return where the parts of a transformers sequence, multiple-choice or image classifier are.

    Nothing is asked by architecture name: the embeddings are what the model says they are, the layers are the
    list of modules in its encoder that is as long as its configuration says, and the head is the last linear layer
    outside of it.
    """
    names = {id(module): name for name, module in model.named_modules()}
    kind = type(model).__name__
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    pixels = reads_pixels(model)
    if base is None or not hasattr(model, "get_input_embeddings"):
        raise InputError(f"{kind} is not a transformers classifier with an encoder inside: calmix cannot train it")

    lists = [(name, module) for name, module in base.named_modules() if isinstance(module, nn.ModuleList)]
    stages = getattr(model.config, "depths", None)
    depth = len(stages) if pixels and stages else getattr(model.config, "num_hidden_layers", None)
    stacks = [(name, module) for name, module in lists if len(module) == depth]
    layers: tuple[str, ...] = ()
    if stacks:
        layers = tuple(names[id(layer)] for layer in stacks[0][1])

    inside = {id(module) for module in base.modules()}
    outside = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and id(m) not in inside]
    if not outside:
        raise InputError(f"{kind} has no linear layer after its encoder: calmix finds no head to train")
    inner = outside[-2] if len(outside) > 1 else None
    if inner is None:
        pooler = [n for n, m in base.named_modules() if n.startswith("pooler") and isinstance(m, nn.Linear)]
        inner = f"{prefix}.{pooler[-1]}" if pooler else None
    return Anatomy(
        embeddings="" if pixels else names[id(model.get_input_embeddings())],  # type: ignore[operator]
        layers=layers,
        head=outside[-1],
        inner=inner,
    )


def reads_pixels(model: nn.Module) -> bool:
    """Return whether a model is a classifier of images."""
    return getattr(model, "main_input_name", "") == "pixel_values"


def head_of(model: nn.Module) -> nn.Linear:
    """Return the last linear layer of a classifier."""
    head = model.get_submodule(anatomy(model).head)
    assert isinstance(head, nn.Linear)
    return head
