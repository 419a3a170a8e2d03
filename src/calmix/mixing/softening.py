"""Targets and weights of each sample by what training has shown of it so far; any recipe takes them on top."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.dynamics import Dynamics, label_issues
from calmix.mixing.checking import check_positive, check_range
from calmix.mixing.recipe import Guide, Recipe
from calmix.mixing.remembering import LOOKS, OWN
from calmix.mixing.step import Step

__all__ = ["distrusting", "doubting", "guided_also", "self_taught", "softened_by_doubt"]

_DOUBT, _TRUST = "doubt", "trust"


def self_taught(recipe: Recipe, *, share: float = 0.5, ramp: float = 1.0) -> Recipe:
    """Return a recipe whose targets are, for a share, the run's own mean predictions in the epochs before.

    Paper: Laine & Aila 2017 (temporal ensembling), here for labelled samples. The first epoch is as it would be. Where
    samples are mixed, so are these targets.

    Args:
        recipe: any.
        share: of the target that the predictions make up.
        ramp: after how many epochs they have their full share.
    """
    check_range("share", share, high=1)
    check_positive("ramp", ramp)

    def loss(step: Step) -> Tensor:
        if OWN in step.signals:
            # Choices that no row of the batch has are left out. A sample that was never seen has its label alone.
            own = step.signal(OWN)[:, : step.targets.shape[-1]]
            weight = share * (step.signal(LOOKS) / ramp).clamp_max(1)
            step.targets = torch.lerp(step.targets, own, weight[:, None])
        return recipe.loss(step)

    return replace(recipe, loss=loss, remembers=True)


def softened_by_doubt(recipe: Recipe, *, smoothing: float = 0.1) -> Recipe:
    """Return a recipe that smooths the labels of hard samples more than those of easy ones.

    The surest sample of the run so far keeps its label, the one most in doubt has twice `smoothing` of its mass spread
    over the other classes; in between by rank, so that the mean over the training set is `smoothing`.

    Args:
        recipe: any.
        smoothing: mean σ of all samples.
    """
    check_range("smoothing", smoothing, high=0.5)

    def loss(step: Step) -> Tensor:
        if _DOUBT in step.signals and step.targets.shape[-1] > 1:
            amount = (2 * smoothing * step.signal(_DOUBT).float())[:, None]
            others = (1 - step.targets) / (step.targets.shape[-1] - 1)
            step.targets = torch.lerp(step.targets, others, amount)
        return recipe.loss(step)

    def guide(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        return {_DOUBT: doubting(dynamics)}

    return guided_also(replace(recipe, loss=loss), guide)


def distrusting(recipe: Recipe, *, weight: float = 0.0) -> Recipe:
    """Return a recipe that gives samples whose label looks wrong by now another weight in the loss.

    Args:
        recipe: any.
        weight: of the samples that `label_issues` flags; 0 leaves them out, 1 changes nothing.
    """
    check_range("weight", weight, high=1)

    def loss(step: Step) -> Tensor:
        losses = recipe.loss(step)
        return losses * step.signal(_TRUST) if _TRUST in step.signals else losses

    def guide(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        return {_TRUST: np.where(label_issues(dynamics).flagged, weight, 1.0).astype(np.float32)}

    return guided_also(replace(recipe, loss=loss), guide)


def doubting(dynamics: Dynamics) -> NDArray[np.float32]:
    """Return the rank of each sample from the most confident (0) to the least (1); one half if never observed."""
    seen = dynamics.observations > 0
    rank = np.full(len(dynamics), 0.5, dtype=np.float32)
    order = np.argsort(-dynamics.confidence[seen], kind="stable")
    places = np.empty(len(order), dtype=np.float32)
    places[order] = np.arange(len(order)) / max(1, len(order) - 1)
    rank[seen] = places
    return rank


def guided_also(recipe: Recipe, guide: Guide) -> Recipe:
    """Return a recipe that is told one thing more about each sample, from its own run."""
    before = recipe.guide

    def both(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
        return {**({} if before is None else before(dynamics)), **guide(dynamics)}

    return replace(recipe, guide=both, online=True)
