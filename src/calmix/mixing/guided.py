"""Methods guided by training dynamics: who is easy and who is not decides who is mixed with whom."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.dynamics import Dynamics, aum_halves, easy_and_ambiguous
from calmix.errors import InputError
from calmix.mixing import terms
from calmix.mixing.bank import Kind, Search, from_bank
from calmix.mixing.checking import check_positive, check_range
from calmix.mixing.levels import Level, mixed_logits
from calmix.mixing.pairing import Similarity, across, by_saliency, sides
from calmix.mixing.recipe import Recipe
from calmix.mixing.sampling import two_sided, uniform
from calmix.mixing.step import Step
from calmix.mixing.targets import cross_entropy, mix, smooth

__all__ = ["aum_saliency", "informed_mixup", "tdmixup"]

_SIDE = "side"
_LEVELS: dict[str, Level] = {"head": "head", "inner": "inner", "input": 0}

At = Literal["head", "inner", "input"]


def aum_saliency(
    *,
    alpha: float = 0.4,
    clean: float = 0.8,
    similar: float = 0.1,
    dissimilar: float = 0.1,
    aum: bool = True,
    saliency: bool = True,
    similarity: Similarity = "auto",
    search: Literal["batch", "set"] = "batch",
    candidates: int = 100,
    at: At = "head",
    smoothing: float = 0.0,
    as_released: bool = False,
) -> Recipe:
    """Mix each sample with the most similar and the most dissimilar one, by saliency, of the other AUM half.

    Paper: Park & Caragea, ACL 2022. Ablations: aum=false, saliency=false, similar=0, dissimilar=0 (with clean=0.9).

    Args:
        alpha: λ ~ Beta(α, α).
        clean: weight β of cross-entropy on the unmixed batch.
        similar: weight γ of the mix with the most similar partner.
        dissimilar: weight δ of the mix with the most dissimilar partner.
        aum: false splits the batch at random instead of by AUM (ablation).
        saliency: false draws both partners at random from the other half (ablation).
        similarity: compare |p−y| (logits) or gradients by the head's weights (head). auto: head for two classes.
        search: look for partners in the batch, or after each epoch in the whole set (their logits of that epoch).
        candidates: the dissimilar one is the farthest of so many drawn from the set; 0: of all, a handful for all.
        at: mix what the head reads, what its dense layer reads, or the input embeddings.
        smoothing: label smoothing σ of the mixed targets; the clean term and the saliency keep hard labels.
        as_released: the loss weights that the authors' code amounts to: 1.4 on each half, 0.05·B/K on each mix.
    """
    for name, value in (("alpha", alpha), ("clean", clean), ("similar", similar), ("dissimilar", dissimilar)):
        check_range(name, value)
    check_range("smoothing", smoothing, high=1)
    check_range("candidates", candidates)
    if search == "set" and at != "head":
        raise InputError("search=set remembers what the head makes of each sample: it goes with at=head alone")
    plain = terms.clean()

    def loss(step: Step) -> Tensor:
        if aum and _SIDE not in step.signals:
            return plain(step)
        weights = (clean, similar, dissimilar)
        if as_released:
            # Mean over each half, both at 1.4; soft cross-entropy summed over the batch and averaged over classes.
            summed = 0.05 * step.size / step.targets.shape[-1]
            weights = (2.8, summed * (similar > 0), summed * (dissimilar > 0))
        total = weights[0] * plain(step)
        mixes = [(weight, partner) for weight, partner in zip(weights[1:], pair(step), strict=True) if weight > 0]
        if at == "head" and mixes and all(isinstance(partner, Tensor) for _, partner in mixes):
            return total + _mixed_in_batch(step, mixes, alpha=alpha, smoothing=smoothing)
        for weight, partner in mixes:
            total = total + weight * _mixed(step, partner, alpha=alpha, smoothing=smoothing, at=at)
        return total

    def pair(step: Step) -> tuple[Tensor | Kind, Tensor | Kind]:
        if "similar" in step.signals:
            return "similar", "dissimilar"
        side = sides(step, _SIDE)
        return by_saliency(step, side, similarity) if saliency else (across(step, side), across(step, side))

    def guide(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        return {_SIDE: aum_halves(dynamics)}

    whole = Search(similarity if saliency else None, candidates, _SIDE if aum else None)
    return Recipe(
        loss,
        batches=two_sided(_SIDE, cycle=False) if aum else uniform,
        guide=guide if aum else None,
        search=None if search == "batch" else whole,
    )


def tdmixup(
    *,
    alpha: float = 0.4,
    fraction: float = 0.33,
    mixed: float = 1.0,
    at: At = "head",
    smoothing: float = 0.0,
    as_released: bool = False,
) -> Recipe:
    """Train on the easy and the ambiguous third alone, and on mixes of one of each.

    Paper: Park & Caragea, NAACL 2022 (TDMixUp). Easy samples that an AUM filter dropped (`calmix map --filter`)
    are left out.

    Args:
        alpha: λ ~ Beta(α, α).
        fraction: share of the data that counts as easy, and as ambiguous.
        mixed: weight of the mixes beside the unmixed samples.
        at: mix what the head reads, what its dense layer reads, or the input embeddings.
        smoothing: label smoothing σ of the mixed targets.
        as_released: weigh the mixes by 0.01, as the authors' code does.
    """
    return _easy_and_ambiguous(
        alpha=alpha,
        fraction=fraction,
        mixed=0.01 if as_released else mixed,
        at=at,
        smoothing=smoothing,
        everyone=False,
    )


def informed_mixup(
    *,
    alpha: float = 0.4,
    fraction: float = 0.33,
    mixed: float = 1.0,
    everyone: bool = True,
    at: At = "head",
    smoothing: float = 0.0,
) -> Recipe:
    """Train on all samples, and on mixes of an easy with an ambiguous one found in the same batch.

    Paper: Hosseini & Caragea (the teacher of their distillation; smoothing 0.1 there).

    Args:
        alpha: λ ~ Beta(α, α).
        fraction: share of the data that counts as easy, and as ambiguous (the paper tried 1/2, 1/3 and 1/4).
        mixed: weight of the mixes beside the unmixed samples.
        everyone: false trains on the easy and ambiguous samples alone, as the paper's appendix has it.
        at: mix what the head reads, what its dense layer reads, or the input embeddings.
        smoothing: label smoothing σ, of unmixed and mixed targets.
    """
    return _easy_and_ambiguous(
        alpha=alpha,
        fraction=fraction,
        mixed=mixed,
        at=at,
        smoothing=smoothing,
        everyone=everyone,
        smooth_clean=True,
    )


def _easy_and_ambiguous(
    *,
    alpha: float,
    fraction: float,
    mixed: float,
    at: At,
    smoothing: float,
    everyone: bool,
    smooth_clean: bool = False,
) -> Recipe:
    check_range("alpha", alpha)
    check_range("mixed", mixed)
    check_positive("fraction", fraction)
    check_range("fraction", fraction, high=0.5)
    check_range("smoothing", smoothing, high=1)
    plain = terms.clean(smoothing=smoothing if smooth_clean else 0.0)

    def loss(step: Step) -> Tensor:
        if _SIDE not in step.signals:
            return plain(step)
        partner = across(step, sides(step, _SIDE))
        found = partner != torch.arange(len(step), device=step.device)
        # The mean over pairs, whatever share of the batch has one.
        pairs = found.view(step.runs, -1).sum(1, keepdim=True).clamp_min(1)
        share = (found.view(step.runs, -1) / pairs * step.size).flatten()
        return plain(step) + mixed * share * _mixed(step, partner, alpha=alpha, smoothing=smoothing, at=at)

    def guide(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        easy, ambiguous = easy_and_ambiguous(dynamics, fraction=fraction)
        if len(easy) == 0:
            raise InputError(f"a share of {fraction:g} of {len(dynamics)} samples is nobody: give a larger fraction")
        side = np.full(len(dynamics), -1, dtype=np.int8)
        side[easy], side[ambiguous] = 0, 1
        return {_SIDE: side}

    return Recipe(loss, batches=uniform if everyone else two_sided(_SIDE, cycle=True), guide=guide)


def _mixed_in_batch(step: Step, mixes: Sequence[tuple[float, Any]], *, alpha: float, smoothing: float) -> Tensor:
    """The same as the weighted sum of `_mixed`, for one or two rows of the batch as partners of each, in few kernels.

    At small batches a step is as long as its kernels are many. What the head makes is linear in what it reads, so
    a matrix that mixes rows does for logits and labels; its product has a gradient that is one product, too.
    """
    lam, partner = step.betas(len(mixes), alpha)[..., None], torch.stack([partner for _, partner in mixes])
    rows = torch.arange(len(step), device=step.device)
    mixer = torch.where(partner[..., None] == rows, 1 - lam, 0.0) + lam * (rows[:, None] == rows)
    losses = cross_entropy(mixer @ step.logits, mixer @ smooth(step.targets, smoothing), step.class_weights)
    # The weights as a tensor that is made on the device: nothing may be copied there while a step is captured.
    return torch.linspace(mixes[0][0], mixes[-1][0], len(mixes), device=step.device) @ losses


def _mixed(step: Step, partner: Tensor | Kind, *, alpha: float, smoothing: float, at: At) -> Tensor:
    """Cross-entropy of each row mixed with a partner: a row of the batch, or one of its two in the bank."""
    weight = step.beta(alpha)
    if isinstance(partner, str):
        found, logits, targets = from_bank(step, partner)
        weight = torch.where(found, weight, 1.0)[:, None]
        blended = weight * smooth(step.targets, smoothing) + (1 - weight) * smooth(targets, smoothing)
        return cross_entropy(weight * step.logits + (1 - weight) * logits, blended, step.class_weights)
    logits = mixed_logits(step, partner, weight, level=_LEVELS[at])
    targets = mix(smooth(step.targets, smoothing), partner, weight)
    return cross_entropy(logits, targets, step.class_weights)
