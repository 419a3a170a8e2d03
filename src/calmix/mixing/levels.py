"""Mixing two samples at a level of the network: input embeddings, a hidden layer, or what the head reads."""

from typing import Literal

import torch
from torch import Tensor

from calmix.errors import InputError
from calmix.mixing.step import Step
from calmix.mixing.targets import mix
from calmix.models import Site, rewriting, site_of_layer

__all__ = ["Level", "Mask", "Padding", "mixed_logits"]

Level = int | Literal["inner", "head"]
"""0: input embeddings; k: after layer k; `inner`: before the head's dense layer; `head`: what the head reads."""

Padding = Literal["sep", "pad", "unused", "none", "max"]
"""What the shorter of a pair is filled up with where the longer one goes on: see `mixed_logits`."""

Mask = Literal["own", "partner", "union"]
"""Whose tokens are attended to in a mixed sequence."""


def mixed_logits(
    step: Step,
    partner: Tensor,
    weight: Tensor,
    *,
    level: Level,
    padding: Padding = "sep",
    mask: Mask = "union",
) -> Tensor:
    """Return the logits of each row mixed with its partner: λ of the row, 1 − λ of the partner.

    The head is linear, so mixing what it reads is mixing the clean logits: no second forward. At token level
    (Zhang & Vaidya 2021) one text is longer than the other. `padding` says what the shorter one is filled with
    up to the longer one's end: separators, the padding token, an unused token, or nothing (`none`: the longer
    one's tail stays as it is). `max` fills every text with separators to the width of the batch.
    """
    if level == "head":
        return mix(step.logits, partner, weight)
    if level == "inner":
        if step.anatomy.inner is None:
            raise InputError("this model has no dense layer before its head: mix at the head instead")
        site, inputs, real = Site(step.anatomy.inner, "input"), step.inputs, None
    else:
        site = site_of_layer(step.anatomy, level)
        inputs, real = _paired_inputs(step, partner, padding=padding, mask=mask)

    flat_partner, flat_weight = _per_sequence(step, partner, weight)
    if real is not None:
        flat_real = real.flatten(0, -2)

    def edit(tensor: Tensor) -> Tensor:
        mixed = mix(tensor, flat_partner, flat_weight)
        if real is None:
            return mixed
        both = (flat_real & flat_real[flat_partner])[..., None]
        alone = torch.where(flat_real[..., None], tensor, tensor[flat_partner])
        return torch.where(both, mixed, alone)

    with rewriting(step.model, site, edit):
        return step.forward(inputs)


def _paired_inputs(
    step: Step, partner: Tensor, *, padding: Padding, mask: Mask
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the inputs with each text filled up to its pair's length, and where real tokens are if unfilled."""
    ids, own = step.inputs["input_ids"], step.inputs["attention_mask"].bool()
    union = own | own[partner]
    if padding == "max":
        union = torch.ones_like(own)
    attended = {"own": own, "partner": own[partner], "union": union}[mask]
    inputs = {**step.inputs, "attention_mask": attended.to(step.inputs["attention_mask"].dtype)}
    if padding == "none":
        return inputs, own
    token = "sep" if padding == "max" else padding
    if token not in step.fill:
        raise InputError(f"this tokenizer has no {token!r} token to pad pairs with: choose another padding")
    inputs["input_ids"] = torch.where(union & ~own, step.fill[token], ids)
    return inputs, None


def _per_sequence(step: Step, partner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return partner and weight for each sequence the encoder sees: a row of choices is several."""
    ids = step.inputs["input_ids"]
    if ids.dim() == 2:
        return partner, weight
    choices = ids.shape[1]
    offsets = torch.arange(choices, device=partner.device)
    return (partner[:, None] * choices + offsets).flatten(), weight.repeat_interleave(choices)
