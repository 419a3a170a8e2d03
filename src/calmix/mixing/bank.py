"""A memory of every sample's last forward, and partners found in it over the whole training set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calmix.dynamics import (
    distinct_partners,
    random_partners,
    residual,
    saliency_map,
    set_partners,
    two_class_vectors,
)
from calmix.mixing.pairing import Similarity, head_gradient
from calmix.mixing.step import Step

__all__ = ["Bank", "Kind", "Search", "from_bank", "partner_counts"]

Kind = Literal["similar", "dissimilar"]
"""Which of a sample's two partners: `similar` or `dissimilar`."""

_KINDS: tuple[Kind, Kind] = ("similar", "dissimilar")
_LOGITS, _TARGETS = "remembered_logits", "remembered_targets"


@dataclass(frozen=True)
class Search:
    """How partners are found over the whole training set."""

    similarity: Similarity | None = "auto"
    """What samples are compared by; None draws both partners at random."""
    candidates: int = 100
    """The dissimilar partner is the farthest of so many drawn ones; 0: of all."""
    halves: str | None = None
    """The signal that says who is of which half, 0 or 1; None draws halves at random."""


class Bank:
    """Logits (and, where they are compared, head inputs) of each sample's last clean forward.

    Nothing in `update` waits for the device or depends on values for its shapes, and all tensors stay where they
    are: a step that contains it can be captured as a CUDA graph.

    Args:
        targets: label distributions [samples, classes or most choices].
        counts: how many choices each sample has, on the host; None for classes.
        hard: whether every target is one label.
        features: the width of what the head reads.
        search: how partners will be looked for.
    """

    def __init__(self, targets: Tensor, counts: Tensor | None, *, hard: bool, features: int, search: Search) -> None:
        self.targets, self.counts, self.hard, self.search = targets, counts, hard, search
        self.logits = torch.full_like(targets, torch.nan, dtype=torch.float32)
        self.fresh = torch.zeros(len(targets), dtype=torch.bool, device=targets.device)
        self.hidden: Tensor | None = None
        sizes = [targets.shape[1]] if counts is None else torch.unique(counts).tolist()
        if any(self._by_head(size) for size in sizes):
            # Lower precision is what a GPU computes it in anyway, and half the memory.
            kind = torch.bfloat16 if targets.device.type == "cuda" else torch.float32
            self.hidden = torch.zeros(len(targets), features, dtype=kind, device=targets.device)

    @torch.no_grad()
    def update(self, step: Step) -> None:
        """Remember the clean forward of a step."""
        assert step.rows is not None
        logits = step.logits.detach()
        # Choices that a row does not have stay NaN.
        self.logits[:, : logits.shape[1]].index_copy_(0, step.rows, logits)
        self.fresh.index_fill_(0, step.rows, True)
        if self.hidden is not None:
            vectors = step.hidden.detach() if self.counts is None else head_gradient(step)
            self.hidden.index_copy_(0, step.rows, vectors.to(self.hidden.dtype))

    @torch.no_grad()
    def merge(self, summed: Callable[[Tensor], Tensor]) -> None:
        """Take over what other processes have seen since the last time: `summed` adds a tensor up over all of them.

        A sample that several of them saw is remembered as the mean.
        """
        count = summed(self.fresh.float())[:, None]
        for values in (self.logits, self.hidden):
            if values is not None:
                total = summed(torch.where(self.fresh[:, None], values, 0))
                values.copy_(torch.where(count > 0, total / count, values))
        self.fresh.zero_()

    @torch.no_grad()
    def signals(self, side: Tensor | None, generator: torch.Generator) -> dict[str, Tensor]:
        """Return what `from_bank` reads, as it stands after an epoch: partners, their logits and their targets.

        `side` says who is of which half (0, 1, or -1 for neither); None draws halves. Who has never been seen has
        no partner but itself, and is nobody's; with multiple choice, only samples with equally many choices are.
        """
        self.fresh.zero_()
        # Apple's GPUs have no float64.
        device = torch.device("cpu") if self.logits.device.type == "mps" else self.logits.device
        logits, targets = self.logits.to(device), self.targets.to(device)
        if side is None:
            side = torch.randperm(len(logits), generator=generator, device=generator.device) % 2
        side = torch.where(logits[:, 0].isnan(), -1, side.to(device))
        sizes = torch.full((len(logits),), logits.shape[1]) if self.counts is None else self.counts
        found = torch.arange(len(logits), device=device).repeat(2, 1)
        for size in torch.unique(sizes).tolist():
            rows = torch.nonzero(sizes == size)[:, 0].to(device)
            pair = self._partners(logits[rows, :size], targets[rows, :size], rows, side[rows], generator)
            found[:, rows] = rows[torch.stack(pair)]
        similar, dissimilar = found.to(self.logits.device)
        return {"similar": similar, "dissimilar": dissimilar, _LOGITS: self.logits, _TARGETS: self.targets}

    def _partners(
        self, logits: Tensor, targets: Tensor, rows: Tensor, side: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        size, candidates = targets.shape[1], self.search.candidates
        if self.search.similarity is None:
            return random_partners(side, generator=generator), random_partners(side, generator=generator)
        if not self._by_head(size):
            three = size == 3 and self.hard
            vectors = saliency_map(logits, targets)
            return set_partners(vectors, side, generator=generator, candidates=candidates, three_classes=three)
        assert self.hidden is not None
        hidden = self.hidden[rows.to(self.hidden.device)].to(rows.device, torch.float32)
        if self.counts is not None:  # what is remembered of choices is the gradient itself
            return set_partners(hidden, side, generator=generator, candidates=candidates)
        gap = residual(logits, targets)
        both = two_class_vectors(gap, hidden) if size == 2 else (gap.float(), hidden)
        return set_partners(both, side, generator=generator, candidates=candidates)

    def _by_head(self, size: int) -> bool:
        return self.search.similarity == "head" or (self.search.similarity == "auto" and size <= 2)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, as tensors to be saved."""
        state = {"logits": self.logits, "fresh": self.fresh}
        return state if self.hidden is None else {**state, "hidden": self.hidden}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict`; tensors stay where they are."""
        for name, values in self.state_dict().items():
            values.copy_(state[name])


def from_bank(step: Step, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
    """Return whether each row has such a partner in the bank, and the partner's logits and targets.

    They are as the last epoch left them and carry no gradient. A row without a partner gets its own.
    """
    assert step.rows is not None
    partner, classes = step.signal(kind), step.targets.shape[1]
    found = partner != step.rows
    logits = torch.where(found[:, None], step.column(_LOGITS)[partner, :classes], step.logits.detach())
    return found, logits, step.column(_TARGETS)[partner, :classes]


def partner_counts(signals: Mapping[str, Tensor]) -> dict[str, int]:
    """Return how many samples have a partner in the bank, and how many different ones there are of each kind."""
    if _LOGITS not in signals:
        return {}
    own = torch.arange(len(signals[_LOGITS]), device=signals[_LOGITS].device)
    paired = signals["similar"] != own
    distinct = {str(kind): distinct_partners(signals[kind][paired]) for kind in _KINDS}
    return {"samples": int(paired.sum()), **distinct}
