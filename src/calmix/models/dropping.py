"""MC-dropout (Gal & Ghahramani 2016): predicting with dropout on, several times over."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from calmix.errors import InputError
from calmix.models.anatomy import anatomy
from calmix.models.sites import Site, rewriting

__all__ = ["Dropout", "dropping"]

# Dropout draws from torch's global generators, which all models and threads share.
_DRAWING = RLock()


@dataclass(frozen=True)
class Dropout:
    """How often to predict, and how much to drop."""

    passes: int = 10
    rate: float | None = None
    """Of every dropout layer; None: as each was trained. Thulasidasan et al. 2019 take 0.3."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.passes, int) or self.passes < 1:
            raise InputError(f"MC-dropout needs 1 pass or more, not {self.passes}")
        if self.rate is not None and not 0 < self.rate < 1:
            raise InputError(f"a dropout rate lies between 0 and 1, not at {self.rate}")

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write and `from_json` reads back."""
        return {"passes": self.passes, "rate": self.rate, "seed": self.seed}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Dropout":
        """The settings that `to_json` wrote down."""
        return cls(int(state["passes"]), state["rate"], int(state["seed"]))


@contextmanager
def dropping(model: nn.Module, dropout: Dropout) -> Iterator[None]:
    """Switch the dropout layers of a model in evaluation mode on, and seed what they draw.

    All else stays in evaluation mode: batch norms use what they learned. A model that has no dropout layer drops from
    what its head reads, if a rate is given. Other threads wait with their dropout until this one is done.
    """
    layers = [module for module in model.modules() if isinstance(module, _DropoutNd)]
    rates = [layer.p for layer in layers]
    if dropout.rate is None and not any(rates):
        raise InputError(
            "this model was trained without dropout, so that every pass would be the same: give a rate (--dropout)"
        )
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with _DRAWING, torch.random.fork_rng(devices):
        torch.manual_seed(dropout.seed)
        for layer, rate in zip(layers, rates, strict=True):
            layer.train()
            layer.p = rate if dropout.rate is None else dropout.rate
        try:
            if layers:
                yield
            else:
                drop = nn.Dropout(dropout.rate or 0.0)
                with rewriting(model, Site(anatomy(model).head, "input"), drop):
                    yield
        finally:
            for layer, rate in zip(layers, rates, strict=True):
                layer.eval()
                layer.p = rate
