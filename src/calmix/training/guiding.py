"""Training dynamics inside the loop: recorded as it trains, and told to the recipe that asks for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor

from calmix.dynamics import Dynamics, Recorder
from calmix.mixing import Recipe, Step

__all__ = ["Guidance"]


class Guidance:
    """Records every clean forward, and keeps the signals of a guided recipe: given once, or renewed each epoch.

    Signals stay in the same tensors, so that captured steps see the renewed ones.
    """

    def __init__(
        self,
        recipe: Recipe,
        labels: Tensor,
        accelerator: Accelerator,
        *,
        dynamics: Dynamics | None = None,
        dropped: NDArray[np.bool_] | None = None,
        online: bool = False,
    ) -> None:
        self.recipe, self.labels, self.accelerator, self.online = recipe, labels, accelerator, online
        self.dropped = dropped
        self.recorder = Recorder(len(labels), device=labels.device)
        # With several processes a sample wanders between them: each records an epoch, merged in order at its end.
        self.past = Recorder(len(labels)) if accelerator.num_processes > 1 else None
        self.signals: dict[str, Tensor] = {}
        self.columns: dict[str, NDArray[Any]] = {}
        if dynamics is not None and recipe.guide is not None:
            self._renew(recipe.guide(dynamics))

    def observe(self, step: Step) -> None:
        """Record a step whose clean logits are known; those of token-level mixing alone are not."""
        if step.is_clean_known:
            assert step.rows is not None
            self.recorder.update(step.logits, self.labels[step.rows], step.rows)

    def end_epoch(self) -> None:
        """Close the epoch's record and, online, renew the signals from all that has been recorded."""
        self.recorder.end_epoch()
        if self.past is not None:
            before = self.past.epochs
            for state in gather_object([{k: v.cpu() for k, v in self.recorder.state_dict().items()}]):
                theirs = Recorder(len(self.labels))
                theirs.load_state_dict(state)
                theirs.epochs += before
                self.past.merge(theirs)
            self.recorder.reset()
        if self.online and self.recipe.guide is not None:
            self._renew(self.recipe.guide(self.dynamics()))

    def dynamics(self, **names: Any) -> Dynamics:
        """Return what has been recorded up to the end of the last epoch."""
        return (self.recorder if self.past is None else self.past).dynamics(**names)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors, to be saved."""
        state = (self.recorder if self.past is None else self.past).state_dict()
        return {f"recorder.{k}": v for k, v in state.items()} | {f"signal.{k}": v for k, v in self.signals.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved tensors."""
        found = {k.partition(".")[2]: v for k, v in tensors.items() if k.startswith("recorder.")}
        (self.recorder if self.past is None else self.past).load_state_dict(found)
        self._renew({k.partition(".")[2]: v.cpu().numpy() for k, v in tensors.items() if k.startswith("signal.")})

    def _renew(self, columns: Mapping[str, NDArray[Any]]) -> None:
        for name, values in columns.items():
            column = np.array(values)
            if self.dropped is not None:
                column[self.dropped] = -1
            self.columns[name] = column
            tensor = torch.from_numpy(column).to(self.labels.device)
            if name in self.signals:
                self.signals[name].copy_(tensor)
            else:
                self.signals[name] = tensor
