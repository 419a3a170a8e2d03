"""The default, and what else can be combined with it at no cost."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from calmix.dynamics import Dynamics, aum_halves
from calmix.errors import InputError
from calmix.mixing import terms
from calmix.mixing.checking import check_range
from calmix.mixing.pairing import across, shuffled, sides
from calmix.mixing.recipe import Recipe
from calmix.mixing.sampling import two_sided
from calmix.mixing.softening import distrusting, guided_also, self_taught, softened_by_doubt
from calmix.mixing.step import Step

__all__ = ["auto"]

_SIDE = "side"


def auto(
    *,
    alpha: float = 0.0,
    share: float = 0.5,
    halves: bool = False,
    own: float = 0.0,
    entropy: float = 0.0,
    smoothing: float = 0.0,
    doubt: float = 0.0,
    distrust: float = 1.0,
    average: float = 0.0,
    cooling: float = 0.1,
) -> Recipe:
    """Plain training, and a temperature for each input by its distance from the training data.

    The other options are what was tried for it and is there to be combined: see docs/auto.md.

    Args:
        alpha: input mixup of part of each batch, λ ~ Beta(α, α); 0 mixes nothing.
        share: the part of each batch that is mixed.
        halves: mix samples of high AUM with those of low AUM, by the run's own dynamics.
        own: share of the targets that the run's own mean predictions make up from the second epoch on.
        entropy: weight of the predictions' entropy, which is taken off the loss.
        smoothing: label smoothing σ of all samples.
        doubt: mean σ of label smoothing that falls on hard samples more than on easy ones, from the second epoch on.
        distrust: weight of samples whose label looks wrong, from the second epoch on.
        average: the share of the run over which weights are averaged.
        cooling: how much the logarithm of the temperature should rise per standard deviation of distance from the data.
    """
    for name, value in (("alpha", alpha), ("entropy", entropy)):
        check_range(name, value)
    for name, value in (("own", own), ("distrust", distrust), ("average", average), ("cooling", cooling)):
        check_range(name, value, high=1)
    check_range("doubt", doubt, high=0.5)
    if halves and alpha == 0:
        raise InputError("halves=true says whom to mix with, so alpha must be above 0")
    plain = terms.clean(smoothing=smoothing)
    if entropy:
        plain = terms.total((1.0, plain), (entropy, terms.negative_entropy()))
    recipe = Recipe(plain, average=average, cooling=cooling, levels=(0,) if alpha > 0 else ())
    if alpha > 0:
        pairing = _across_halves if halves else shuffled
        mixed = terms.mixed(0, alpha=alpha, pairing=pairing, share=share, smoothing=smoothing, entropy=entropy)

        def loss(step: Step) -> Tensor:
            return plain(step) if halves and _SIDE not in step.signals else mixed(step)

        recipe = replace(recipe, loss=loss)
    if halves:
        recipe = guided_also(replace(recipe, batches=two_sided(_SIDE, cycle=False)), _halves)
    if own > 0:
        recipe = self_taught(recipe, share=own)
    if doubt > 0:
        recipe = softened_by_doubt(recipe, smoothing=doubt)
    if distrust < 1:
        recipe = distrusting(recipe, weight=distrust)
    return recipe


def _across_halves(step: Step) -> Tensor:
    return across(step, sides(step, _SIDE))


def _halves(dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
    return {_SIDE: aum_halves(dynamics)}
