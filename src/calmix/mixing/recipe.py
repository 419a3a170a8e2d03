"""What a training method is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import nn

from calmix.data import Examples
from calmix.dynamics import Dynamics
from calmix.mixing.bank import Search
from calmix.mixing.levels import Level
from calmix.mixing.sampling import Sampling, uniform
from calmix.mixing.terms import Term
from calmix.models import Anatomy

__all__ = ["Guide", "Recipe"]

Guide = Callable[[Dynamics], Mapping[str, NDArray[Any]]]
"""Dynamics → what the recipe wants to know about each training sample: columns by name, one value a sample."""


def _one(_model: nn.Module) -> int:
    return 1


@dataclass(frozen=True)
class Recipe:
    """A training method: what the loss of a batch is, and what it needs from the loop around it."""

    loss: Term
    """Step → one loss per row."""
    batches: Sampling = uniform
    """Which samples share a batch."""
    variants: Callable[[nn.Module], int] = _one
    """How many kinds of step there are for a model; the loop draws `step.variant` below it."""
    prepare: Callable[[Examples], Examples] | None = None
    """What is done to the training set before anything is tokenised."""
    guide: Guide | None = None
    """What training dynamics tell the recipe about each sample, as columns in `step.signals`: once, from a run
    made before, or anew after each epoch from the run itself. Without signals (the first epoch of the latter),
    batches and loss must be those of plain training."""
    search: Search | None = None
    """How partners are found over the whole training set after each epoch, from what the loop remembers of every
    sample; `from_bank` tells a step who they are. None for recipes that pair inside a batch."""
    taught: bool = False
    """Whether it learns from a teacher, whose logits are the signal `teacher`: a run must be given one."""
    levels: tuple[Level, ...] | Callable[[Anatomy], tuple[Level, ...]] | None = None
    """Where it mixes, and `head` also if it reads what the head does: tried on the network before a run. None, where a
    recipe does not say, tries every level, and a note tells which do not work."""
