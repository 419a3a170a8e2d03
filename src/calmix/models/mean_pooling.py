"""Mean pooling inside an ordinary checkpoint: one more layer, in which the first token attends to all alike.

Encoders of sentences are trained to have their meaning in the mean of the last hidden states, and most others have more
of it there than in their first token, which nothing has trained. Classifiers of transformers' read the first token. A
further layer whose attention is uniform, whose values are what comes in, and whose feed-forward part adds nothing yet
puts the mean there: the network stays one that `from_pretrained` loads with nothing of ours, and what the layer does
can be fine-tuned like all else.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from calmix.models.anatomy import anatomy

__all__ = ["Pooling", "add_mean_pooling"]

Pooling = Literal["mean", "first"]
"""What a classifier reads of a text: the mean of all tokens, or what its architecture reads, mostly the first token."""

_KEY = "calmix_pooling"  # where a config says that the layer is there
# Settings of those whose tokens attend to what is near: a made-up text may be too short to show it.
_LOCAL = ("attention_window", "block_size")
# How much more the mean counts than the first token itself, which the layer adds to it.
_WEIGHT = 20.0
# The cosine that the first token's new state must have with the mean.
_ALIKE = 0.99


@dataclass(frozen=True)
class _Parts:
    """What an encoder's layer calls its parts; norms come after the sums."""

    query: str
    value: str
    out: str
    norm: str
    narrow: str
    last_norm: str


_KNOWN = (
    # BERT and whatever was made after its code: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, ERNIE …
    _Parts(
        "attention.self.query",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "output.dense",
        "output.LayerNorm",
    ),
    # DistilBERT.
    _Parts(
        "attention.q_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin2",
        "output_layer_norm",
    ),
)


def add_mean_pooling(model: Any) -> bool:
    """Add a layer that puts the mean of a text's tokens where the classifier reads; return whether that could be done.

    It is tried on a made-up text. Where an architecture is of another kind, or its layer does something else with what
    it is given, the model is left as it was. So is one that has the layer already, trained since or not.
    """
    if getattr(model.config, _KEY, None) == "mean":
        return True
    whole, config = anatomy(model), model.config
    paths = whole.layers
    if not whole.embeddings or not paths or len(set(paths)) != len(paths):
        return False
    last, stack = model.get_submodule(paths[-1]), model.get_submodule(paths[-1].rpartition(".")[0])
    names = {name for name, _ in last.named_modules()}
    parts = next((known for known in _KNOWN if set(vars(known).values()) <= names), None)
    if parts is None or not isinstance(stack, nn.ModuleList) or len(stack) != config.num_hidden_layers:
        return False
    if getattr(config, "is_decoder", False) or getattr(config, "position_embedding_type", "absolute") != "absolute":
        return False
    if any(hasattr(config, name) for name in _LOCAL):
        return False
    added = copy.deepcopy(last)
    _make_uniform(added, parts)
    for module in added.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = len(stack)
    stack.append(added)
    config.num_hidden_layers += 1
    done = False
    try:
        done = _is_mean(model, stack)
    finally:
        if not done:
            del stack[-1]
            config.num_hidden_layers -= 1
    if done:
        setattr(config, _KEY, "mean")
    return done


@torch.no_grad()
def _make_uniform(layer: nn.Module, parts: _Parts) -> None:
    """Have a layer attend to all tokens alike and hand on their mean, normalised; its keys wait for a query."""

    def linear(name: str) -> Any:
        return layer.get_submodule(name)

    nn.init.zeros_(linear(parts.query).weight)
    nn.init.eye_(linear(parts.value).weight)
    nn.init.eye_(linear(parts.out).weight)
    linear(parts.out).weight.mul_(_WEIGHT)
    nn.init.zeros_(linear(parts.narrow).weight)
    for name in (parts.query, parts.value, parts.out, parts.narrow, parts.norm, parts.last_norm):
        if getattr(linear(name), "bias", None) is not None:
            nn.init.zeros_(linear(name).bias)
    for name in (parts.norm, parts.last_norm):
        nn.init.ones_(linear(name).weight)


def _is_mean(model: Any, stack: nn.ModuleList) -> bool:
    """Return whether the first token's last state is now the mean of those before, centred; some tokens are padding."""
    table = model.get_input_embeddings().weight
    ids = (torch.arange(24, device=table.device).view(2, 12) * 7 + 5) % len(table)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    was_training = model.training
    model.eval()
    states: list[Any] = []
    # Asked for hidden states, transformers would leave hooks of its own in every layer.
    hooks = [layer.register_forward_hook(lambda _m, _args, out: states.append(out)) for layer in stack[-2:]]
    try:
        with torch.no_grad():
            getattr(model, model.base_model_prefix)(input_ids=ids, attention_mask=mask)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    if len(states) != 2:
        return False
    before, after = (state if isinstance(state, torch.Tensor) else state[0] for state in states)
    shown = mask[..., None].float()
    mean = (before.float() * shown).sum(1) / shown.sum(1)
    centred = mean - mean.mean(1, keepdim=True)
    return bool((nn.functional.cosine_similarity(after[:, 0].float(), centred, dim=1) > _ALIKE).all())
