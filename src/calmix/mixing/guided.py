"""Methods guided by training dynamics: who is easy and who is not decides who is mixed with whom."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.dynamics import Dynamics, aum_halves, easy_and_ambiguous
from calmix.errors import InputError
from calmix.mixing.bank import Kind, Search, from_bank
from calmix.mixing.checking import check_positive, check_range, check_word
from calmix.mixing.levels import Level, mixed_logits
from calmix.mixing.losses import Mixes, row_losses, step_losses
from calmix.mixing.pairing import Similarity, across, by_saliency, sides
from calmix.mixing.recipe import Recipe
from calmix.mixing.sampling import two_sided, uniform
from calmix.mixing.step import Step
from calmix.mixing.targets import mix, smooth

__all__ = ["aum_saliency", "informed_mixup", "tdmixup"]

_SIDE = "side"
_LEVELS: dict[str, Level] = {"head": "head", "inner": "inner", "input": 0}

At = Literal["head", "inner", "input"]
Where = Literal["batch", "set"]


def aum_saliency(
    *,
    alpha: float = 0.4,
    clean: float = 0.8,
    similar: float = 0.1,
    dissimilar: float = 0.1,
    aum: bool = True,
    saliency: bool = True,
    similarity: Similarity = "auto",
    search: Where = "batch",
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
    check_word("similarity", similarity, get_args(Similarity))
    check_word("search", search, get_args(Where))
    check_word("at", at, list(_LEVELS))
    if search == "set" and at != "head":
        raise InputError("search=set remembers what the head makes of each sample: it goes with at=head alone")

    def loss(step: Step) -> Tensor:
        if aum and _SIDE not in step.signals:
            return step_losses(step)
        weights = (clean, similar, dissimilar)
        if as_released:
            # Mean over each half, both at 1.4; soft cross-entropy summed over the batch and averaged over classes.
            summed = 0.05 * step.size / step.targets.shape[-1]
            weights = (2.8, summed * (similar > 0), summed * (dissimilar > 0))
        kept = [place for place, weight in enumerate(weights[1:]) if weight > 0]
        partners: Sequence[Tensor | Kind] = ("similar", "dissimilar")
        if partners[0] not in step.signals:
            draws = step.ahead(lambda: drawn(step, [weights[1 + place] for place in kept] if at == "head" else []))
            assert step.logits is not None  # made meanwhile
            side, random, shares = draws()
            found = by_saliency(step, side, similarity) if random is None else random
            if shares is not None:
                mixes = Mixes(found[kept[0] : kept[-1] + 1], *shares, smoothing=smoothing)
                return step_losses(step, mixes, clean=weights[0])
            partners = list(found)
        total = step_losses(step, clean=weights[0])
        for place in kept:
            mixed = _mixed(step, partners[place], step.beta(alpha), smoothing=smoothing, at=at)
            total = total + weights[1 + place] * mixed
        return total

    def drawn(step: Step, weights: list[float]) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
        side = sides(step, _SIDE)
        random = None if saliency else torch.stack((across(step, side), across(step, side)))
        if not weights:
            return side, random, None
        # The weights as a tensor that is made on the device: nothing may be copied there while a step is captured.
        counts = torch.linspace(weights[0], weights[-1], len(weights), device=step.device)
        return side, random, (step.betas(len(weights), alpha), counts)

    def guide(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        return {_SIDE: aum_halves(dynamics)}

    whole = Search(similarity if saliency else None, candidates, _SIDE if aum else None)
    return Recipe(
        loss,
        batches=two_sided(_SIDE, cycle=False) if aum else uniform,
        guide=guide if aum else None,
        search=None if search == "batch" else whole,
        levels=("head", *({_LEVELS[at]} - {"head"})),
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
    check_word("at", at, list(_LEVELS))
    smoothing_clean = smoothing if smooth_clean else 0.0

    def loss(step: Step) -> Tensor:
        if _SIDE not in step.signals:
            return step_losses(step, smoothing=smoothing_clean)
        draws = step.ahead(lambda: drawn(step))
        assert step.logits is not None  # made meanwhile
        partner, own, weight = draws()
        if at == "head":
            return step_losses(step, Mixes(partner, own, weight, smoothing), smoothing=smoothing_clean)
        total = step_losses(step, smoothing=smoothing_clean)
        return total + weight * _mixed(step, partner, own, smoothing=smoothing, at=at)

    def drawn(step: Step) -> tuple[Tensor, Tensor, Tensor]:
        partner = across(step, sides(step, _SIDE))
        found = partner != torch.arange(len(step), device=step.device)
        # The mean over pairs, whatever share of the batch has one.
        pairs = found.view(step.runs, -1).sum(1, keepdim=True).clamp_min(1)
        share = (found.view(step.runs, -1) / pairs * step.size).flatten()
        return partner, step.beta(alpha), mixed * share

    def guide(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        easy, ambiguous = easy_and_ambiguous(dynamics, fraction=fraction)
        if len(easy) == 0:
            raise InputError(f"a share of {fraction:g} of {len(dynamics)} samples is nobody: give a larger fraction")
        side = np.full(len(dynamics), -1, dtype=np.int8)
        side[easy], side[ambiguous] = 0, 1
        return {_SIDE: side}

    batches = uniform if everyone else two_sided(_SIDE, cycle=True)
    return Recipe(loss, batches=batches, guide=guide, levels=(_LEVELS[at],))


def _mixed(step: Step, partner: Tensor | Kind, weight: Tensor, *, smoothing: float, at: At) -> Tensor:
    """Cross-entropy of each row mixed with a partner: a row of the batch, or one of its two in the bank."""
    if isinstance(partner, str):
        found, logits, targets = from_bank(step, partner)
        weight = torch.where(found, weight, 1.0)[:, None]
        blended = weight * smooth(step.targets, smoothing) + (1 - weight) * smooth(targets, smoothing)
        logits = weight * step.logits + (1 - weight) * logits
        return row_losses(logits, blended, class_weights=step.class_weights)
    logits = mixed_logits(step, partner, weight, level=_LEVELS[at])
    targets = mix(smooth(step.targets, smoothing), partner, weight)
    return row_losses(logits, targets, class_weights=step.class_weights)
