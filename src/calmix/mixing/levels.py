"""Mixing two samples at a level of the network: input embeddings, a hidden layer, or what the head reads."""

from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from calmix.errors import InputError
from calmix.mixing.checking import check_word
from calmix.mixing.step import Step
from calmix.mixing.targets import mix
from calmix.models import Site, averages_scores, counts_from_padding, last_tokens, rewriting, site_of_layer

__all__ = ["Level", "Mask", "Padding", "check_level", "check_pairs", "mixed_logits"]

Level = int | Literal["inner", "head"]
"""0: input embeddings, or pixels; k: after layer k, or stage k; `inner`: before the head's dense layer; `head`: what
the head reads."""

Padding = Literal["sep", "pad", "unused", "none", "max", "max-pad", "max-unused"]
"""What the shorter of a pair is filled up with where the longer one goes on: see `mixed_logits`."""

Mask = Literal["own", "partner", "union"]
"""Whose tokens are attended to in a mixed sequence."""


def check_level(level: Any) -> None:
    """Refuse what is no level of any network."""
    if level not in ("inner", "head") and not isinstance(level, Integral):
        raise InputError(f"level must be a whole number, inner or head, not {level!r}")


def check_pairs(padding: str, mask: str) -> None:
    """Refuse a padding or a mask that does not exist."""
    for name, value, known in (("padding", padding, get_args(Padding)), ("mask", mask, get_args(Mask))):
        check_word(name, value, known)


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
    one's tail stays as it is). `max` fills every text with separators to the width of the batch, `max-pad` and
    `max-unused` with those tokens. What is filled in continues the positions, and is in the segment, of the longer
    text. A forward has one attention mask: with `union`, the layers below a hidden level also see what was filled
    in, the padding token in the case of `none`. Images are all of one size: `padding` and `mask` mean nothing to
    them.
    """
    check_level(level)
    check_pairs(padding, mask)
    if level == "head":
        return mix(step.logits, partner, weight)
    flat_partner, flat_weight = _per_sequence(step, partner, weight)

    def mixed(tensor: Tensor) -> Tensor:
        return mix(tensor, flat_partner, flat_weight)

    if level == "inner":
        if step.anatomy.inner is None:
            raise InputError("this model has no dense layer before its head: mix at the head instead")
        with rewriting(step.model, Site(step.anatomy.inner, "input"), lambda read: mixed(_read_at_end(step, read))):
            return step.forward(step.inputs)

    if level == 0 and "pixel_values" in step.inputs:
        return step.forward_edited(mixed)
    site = site_of_layer(step.anatomy, level)
    if "pixel_values" in step.inputs:
        with rewriting(step.model, site, mixed):
            return step.forward(step.inputs)

    own = step.inputs["attention_mask"].bool()
    theirs = own[partner]

    def mixed_or_alone(tensor: Tensor) -> Tensor:
        more = tensor.shape[1] - own.shape[-1]  # some networks fill each batch up to a width of their own (Longformer)
        mine, other = (pad(tokens.flatten(0, -2), (0, more))[..., None] for tokens in (own, theirs))
        return torch.where(mine & other, mixed(tensor), torch.where(mine, tensor, tensor[flat_partner]))

    inputs = _paired_inputs(step, partner, own, theirs, padding=padding, mask=mask)
    edit = mixed_or_alone if padding == "none" else mixed
    if averages_scores(step.model.config):
        with rewriting(step.model, site, edit):
            return step.forward(inputs)
    ends = _ends(step, partner, padding=padding, mask=mask)
    with (
        rewriting(step.model, site, edit),
        rewriting(step.model, Site(step.anatomy.head), lambda scores: _read_at(scores, ends)),
    ):
        return step.forward(inputs)


def _paired_inputs(
    step: Step, partner: Tensor, own: Tensor, theirs: Tensor, *, padding: Padding, mask: Mask
) -> dict[str, Tensor]:
    """Return the inputs with each text filled up, attended to as far as its pair goes."""
    filled = torch.ones_like(own) if padding.startswith("max") else own | theirs
    attended = {"own": own, "partner": theirs, "union": filled}[mask]
    inputs = {**step.inputs, "attention_mask": attended.to(step.inputs["attention_mask"].dtype)}
    if "token_type_ids" in inputs:
        # The shorter text goes on in the longer one's segment.
        inputs["token_type_ids"] = torch.where(
            theirs & ~own, inputs["token_type_ids"][partner], inputs["token_type_ids"]
        )
    if counts_from_padding(step.model.config):
        # Left alone, such a model would give all that was filled in the position of padding.
        before_first = step.model.get_submodule(step.anatomy.embeddings).padding_idx
        counted = filled if padding == "none" else torch.ones_like(own)
        inputs["position_ids"] = counted.cumsum(-1) * counted + before_first  # type: ignore[operator]
    if padding != "none":
        token = "sep" if padding == "max" else padding.removeprefix("max-")
        if token not in step.fill:
            raise InputError(f"this tokenizer has no {token!r} token to pad pairs with: choose another padding")
        # To the width of the batch, whatever is attended to: a text is partner of others than its own partner, of which
        # each may go on longer.
        inputs["input_ids"] = torch.where(own, inputs["input_ids"], step.fill[token])
    return inputs


def _ends(step: Step, partner: Tensor, *, padding: Padding, mask: Mask) -> Tensor:
    """Return where each mixed text ends: at the last token that is attended to."""
    ids = step.inputs["input_ids"]
    own = last_tokens(ids, step.model.config.pad_token_id)  # type: ignore[union-attr, arg-type]
    if mask == "own":
        return own
    if mask == "partner":
        return own[partner]
    if padding.startswith("max"):
        return torch.full_like(own, ids.shape[-1] - 1)
    return torch.maximum(own, own[partner])


def _read_at(scores: Tensor, ends: Tensor) -> Tensor:
    """Return the head's scores with those at the end of each text in every place.

    A decoder classifier scores every token and then picks the last one that is not padding by its id. A mixed
    text ends elsewhere; with the same scores everywhere, any pick is right. Other heads have one score a text.
    """
    if scores.dim() == 2:
        return scores
    picked = scores[torch.arange(len(ends), device=ends.device), ends]
    return picked[:, None].expand_as(scores)


def _read_at_end(step: Step, read: Tensor) -> Tensor:
    """Return what a dense layer reads, of a decoder classifier what it reads at the end of each text in every place."""
    if read.dim() == 2:
        return read
    ends = last_tokens(step.inputs["input_ids"], step.model.config.pad_token_id)  # type: ignore[union-attr, arg-type]
    return _read_at(read, ends)


def _per_sequence(step: Step, partner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return partner and weight for each sequence the encoder sees: a row of choices is several."""
    if not step.has_choices:
        return partner, weight
    choices = step.inputs["input_ids"].shape[1]
    offsets = torch.arange(choices, device=partner.device)
    return (partner[:, None] * choices + offsets).flatten(), weight.repeat_interleave(choices)
