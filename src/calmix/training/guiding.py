"""Training dynamics inside the loop: recorded as it trains, and told to the recipe that asks for them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.dynamics import Dynamics, Pass, Recorder
from calmix.mixing import Bank, Recipe, Signal, Step, partner_counts
from calmix.models import anatomy, predict_logits
from calmix.training.batches import TrainingSet
from calmix.training.seeding import seed_for

__all__ = ["Guidance", "Record", "partner_notes", "record_notes"]

Record = Literal["training", "evaluation"]
"""Which logits are recorded: those of the training steps, or those of a pass of its own after each epoch."""

_PASSES: dict[Record, Pass] = {"training": "training pass", "evaluation": "evaluation pass"}


class Guidance:
    """Records every sample, and keeps the signals of a guided recipe: given once, or renewed before each epoch.

    Signals stay in the same tensors, so that captured steps see the renewed ones. Those given from outside never
    change, and are not saved with the state of the run.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        data: TrainingSet,
        accelerator: Accelerator,
        *,
        dynamics: Dynamics | None = None,
        dropped: NDArray[np.bool_] | None = None,
        online: bool = False,
        record: Record = "training",
        seed: int = 0,
        given: Mapping[str, Signal] | None = None,
    ) -> None:
        self.recipe, self.model, self.data, self.accelerator = recipe, model, data, accelerator
        self.dropped, self.online, self.record, self.seed = dropped, online, record, seed
        self.recorder = Recorder(len(data.labels), device=data.labels.device)
        # With several processes a sample wanders between them: each records its share of an epoch, or of the part of
        # it since the last checkpoint, and these are merged in order.
        self.past = Recorder(len(data.labels)) if accelerator.num_processes > 1 else None
        self.bank = None if recipe.search is None else _bank(recipe, model, data)
        self.given = dict(given or {})
        self.told: dict[str, Tensor] = {}
        self.columns: dict[str, NDArray[Any]] = {}
        if dynamics is not None and recipe.guide is not None:
            self._guide(dynamics)

    @property
    def signals(self) -> dict[str, Signal]:
        """What is known about each sample: what was given from outside, and what dynamics told."""
        return self.given | self.told

    def observe(self, step: Step) -> None:
        """Record a step whose clean logits are known; those of token-level mixing alone are not."""
        if step.observed is None:
            return
        logits, rows = step.observed
        if self.record == "training":
            self.recorder.update(logits, self.data.labels[rows], rows)
        if self.bank is not None:
            self.bank.update(step)

    def begin_epoch(self, epoch: int) -> None:
        """Renew what the epochs before have changed: online regions, and partners over the whole set."""
        if epoch == 0:
            return
        if self.online and self.recipe.guide is not None:
            self._guide(self.dynamics())
        if self.bank is not None:
            device = self.data.labels.device
            generator = torch.Generator("cpu" if device.type == "mps" else device)
            generator.manual_seed(seed_for(self.seed, epoch, 3))
            halves = self.bank.search.halves
            self._renew(self.bank.signals(None if halves is None else self.told[halves], generator))

    def gather(self) -> None:
        """Put together what several processes have seen since the last time; all of them must call it."""
        if self.past is None:
            return
        summed = partial(self.accelerator.reduce, reduction="sum")
        for state in gather_object([{k: v.cpu() for k, v in self.recorder.state_dict().items()}]):
            theirs = Recorder(len(self.data.labels))
            theirs.load_state_dict(state)
            self.past.merge(theirs)
        self.recorder.reset()
        if self.bank is not None:
            self.bank.merge(summed)

    def end_epoch(self) -> None:
        """Close the epoch's record, put together from all processes."""
        if self.record == "evaluation":
            self._look_again()
        self.gather()
        (self.recorder if self.past is None else self.past).end_epoch()

    def dynamics(self, **names: Any) -> Dynamics:
        """Return what has been recorded up to the end of the last epoch."""
        recorder = self.recorder if self.past is None else self.past
        return recorder.dynamics(recorded_on=_PASSES[self.record], **names)

    def partners(self) -> dict[str, int]:
        """Return how many different partners this epoch's samples have over the whole set; nothing without any."""
        return partner_counts(self.told)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors, to be saved."""
        recorder = self.recorder if self.past is None else self.past
        groups: dict[str, Mapping[str, Tensor]] = {"recorder": recorder.state_dict()}
        for name, values in self.told.items():
            kind = "column" if name in self.columns else "partner"
            groups[kind] = {**groups.get(kind, {}), name: values}
        if self.bank is not None:
            groups["bank"] = self.bank.state_dict()
        return {f"{group}.{name}": values for group, named in groups.items() for name, values in named.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved tensors."""
        groups: dict[str, dict[str, Tensor]] = {"recorder": {}, "column": {}, "partner": {}, "bank": {}}
        for name, values in tensors.items():
            group, _, rest = name.partition(".")
            groups[group][rest] = values
        (self.recorder if self.past is None else self.past).load_state_dict(groups["recorder"])
        if self.bank is not None:
            self.bank.load_state_dict(groups["bank"])
        self.columns.update({name: values.cpu().numpy() for name, values in groups["column"].items()})
        self._renew({**groups["column"], **groups["partner"]})

    def _look_again(self) -> None:
        """Record an evaluation pass over the training set: each process its share."""
        device, world = self.data.labels.device, self.accelerator.num_processes
        share = np.arange(len(self.data.labels))[self.accelerator.process_index :: world]
        logits = torch.from_numpy(predict_logits(self.model, self.data.packed, rows=share)).to(device)
        rows = torch.from_numpy(share).to(device)
        self.recorder.update(logits, self.data.labels[rows], rows)

    def _guide(self, dynamics: Dynamics) -> None:
        assert self.recipe.guide is not None
        for name, values in self.recipe.guide(dynamics).items():
            column = np.array(values)
            if self.dropped is not None:
                column[self.dropped] = -1
            self.columns[name] = column
        self._renew({name: torch.from_numpy(column) for name, column in self.columns.items()})

    def _renew(self, signals: Mapping[str, Tensor]) -> None:
        for name, values in signals.items():
            if name in self.told:
                self.told[name].copy_(values)
            else:
                self.told[name] = values.to(self.data.labels.device, copy=True)


def _bank(recipe: Recipe, model: nn.Module, data: TrainingSet) -> Bank:
    counts = None if data.packed.counts is None else torch.from_numpy(data.packed.counts)
    targets = data.targets
    if targets is None:
        width = data.classes if counts is None else int(counts.max())
        assert width is not None
        targets = nn.functional.one_hot(data.labels, width).float()
    head = model.get_submodule(anatomy(model).head)
    assert recipe.search is not None
    return Bank(targets, counts, hard=data.targets is None, features=head.in_features, search=recipe.search)  # type: ignore[arg-type]


def record_notes(record: Record) -> list[str]:
    """Return what there is to say about the way dynamics are recorded: that it costs something."""
    if record == "training":
        return []
    return ["dynamics: recorded in a pass over the training data after each epoch, about a third more time"]


def partner_notes(recipe: Recipe, history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many different partners a search over the whole set gave in the last epoch."""
    if recipe.search is None:
        return []
    found = history[-1].get("partners") if history else None
    if found is None:
        return ["partners: searched in each batch; the whole set is searched from the second epoch on"]
    return [
        f"partners: {found['samples']:,} samples had {found['similar']:,} different similar ones and "
        f"{found['dissimilar']:,} different dissimilar ones in the last epoch"
    ]
