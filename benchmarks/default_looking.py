"""What a trained network says about sets of samples, and how far each lies from its training data in four ways."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.mixing import Step
from calmix.mixing.levels import mixed_logits
from calmix.models import Packed, anatomy, head_input, pooled


def distances(seen: Mapping[str, Tensor], near: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:
    """Return four distances of each row [rows, 4]: to neighbours and Mahalanobis, at the head and in the middle.

    A row of several choices is as far as they are on average.
    """
    columns = []
    for part in ("head", "middle"):
        x, reference = seen[part], near[part].flatten(0, 1)
        rows, choices, width = x.shape
        flat = x.reshape(-1, width)
        unit, units = (nn.functional.normalize(t, dim=-1) for t in (flat, reference))
        nearest = (unit @ units.T).topk(min(10, len(units)), dim=1).values
        neighbours = (2 - 2 * nearest.clamp(max=1)).clamp_min(0).sqrt().mean(1)
        grouped = part == "head" and labels is not None
        means = (
            torch.stack([reference[labels == k].mean(0) for k in torch.unique(labels)])
            if grouped
            else reference.mean(0)[None]
        )
        centred = reference - (means[torch.unique(labels, return_inverse=True)[1]] if grouped else means)
        spread = centred.T.double() @ centred.double() / len(centred)
        spread += 1e-3 * spread.diagonal().mean() * torch.eye(width, device=spread.device, dtype=spread.dtype)
        whiten = torch.linalg.cholesky(torch.linalg.inv(spread)).float()
        far = torch.cdist(flat @ whiten, means @ whiten).min(1).values
        columns += [neighbours.view(rows, choices).mean(1), far.view(rows, choices).mean(1)]
    return torch.stack(columns, 1)


@torch.inference_mode()
def look(
    model: nn.Module,
    packed: Packed,
    *,
    layer: int | None,
    rows: NDArray[np.int64] | None = None,
    mixing: Mapping[str, int] | None = None,
) -> dict[str, Tensor]:
    """Return the logits of each sample, and what its head and a middle layer hold of it [samples, choices, width]."""
    model.eval()
    parts, device = anatomy(model), packed.ids.device
    asked = np.arange(len(packed)) if rows is None else rows
    kept: dict[str, list[Tensor]] = {}
    places: list[Tensor] = []
    middle: list[Tensor] = []
    handle = None
    if layer is not None:
        handle = model.get_submodule(parts.layers[layer - 1]).register_forward_hook(
            lambda _m, _a, output: middle.append(output[0] if isinstance(output, tuple) else output)
        )
    generator = torch.Generator(device).manual_seed(0)
    with head_input(model, parts) if layer is not None else nullcontext([]) as heads:
        for batch in batches_of(packed, asked):
            there = torch.from_numpy(asked[batch]).to(device)
            choices = None if packed.counts is None else int(packed.counts[asked[batch[0]]])
            inputs = packed.batch(there, width=packed.width(asked[batch]), choices=choices)
            seen: dict[str, Tensor] = {}
            if mixing is None:
                seen["logits"] = model(**inputs).logits.float()  # type: ignore[operator]
            else:
                step = Step(model, inputs, torch.zeros(len(there), 1, device=device), generator, fill=mixing)
                partner = step.permutation()
                weight = 0.5 + 0.5 * torch.rand(len(there), generator=generator, device=device)
                seen["logits"] = mixed_logits(step, partner, weight, level=0)
                seen |= {"partner": there[partner], "weight": weight}
            if layer is not None:
                shape = (len(there), choices or 1, -1)
                mask = inputs["attention_mask"].flatten(0, -2)[..., None].float()
                held = middle.pop().float()
                seen["head"] = pooled(heads.pop(), inputs, model.config.pad_token_id).float().reshape(shape)  # type: ignore[union-attr, arg-type]
                seen["middle"] = ((held * mask).sum(1) / mask.sum(1)).reshape(shape)
            for name, values in seen.items():
                kept.setdefault(name, []).append(values)
            places.append(torch.from_numpy(batch).to(device))
    if handle is not None:
        handle.remove()
    order = torch.cat(places).argsort()
    return {name: torch.cat(values)[order] for name, values in kept.items()}


def batches_of(packed: Packed, asked: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield places in `asked` that make a batch: of like length, as many as fit."""
    most = 65_536 if packed.ids.device.type == "cuda" else 2048
    order = np.argsort(-packed.host_lengths[asked], kind="stable")
    start = 0
    while start < len(order):
        row = asked[order[start]]
        width = packed.width(asked[order[start : start + 1]]) * (
            1 if packed.counts is None else int(packed.counts[row])
        )
        stop = start + max(2, most // width)
        yield order[start:stop]
        start = stop
