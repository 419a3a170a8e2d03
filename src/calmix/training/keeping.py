"""What a run has come to, and where that is kept: counters, the best epoch's weights, log and checkpoints."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.data import write_text
from calmix.models import scale_head
from calmix.training.launching import from_main, over_all, share_statistics
from calmix.training.sharding import Shards
from calmix.training.state import latest, load_optimizer, optimizer_tensors, save_state
from calmix.training.stepping import Stepper

__all__ = ["Fit", "Keeper", "write_log"]


_NOT_SAVED = ("dev", "best_dev", "fold_logits", "notes")


@dataclass
class Fit:
    """What a run has come to: saved with every checkpoint, returned at the end."""

    history: list[dict[str, Any]] = field(default_factory=list)
    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_score: float | None = None
    head_factor: float = 1.0
    """What the head was multiplied by after epoch 0 was judged, which is the network before fine-tuning."""
    beginning: str = ""
    """What the user should know of the head that the run began with."""
    loss: float = 0.0
    rows: int = 0
    seconds: float = 0.0
    beside: int = 0
    """How many other runs were trained in the same steps."""
    dev: NDArray[np.float32] | None = None
    """What the network said about the dev set at the end of the last epoch, unless that was in lower precision."""
    best_dev: NDArray[np.float32] | None = None
    """And of the best one, unless another process saw that."""
    fold_logits: NDArray[np.float32] | None = None
    """What was said of each training row by heads fitted without it, where that was asked."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of how steps were taken."""

    def saved(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        return {name: value for name, value in vars(self).items() if name not in _NOT_SAVED}


def write_log(out: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write `log.jsonl`, a line for each epoch."""
    write_text(out / "log.jsonl", "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in history))


class Keeper:
    """Keeps a run: in memory always, and in the folder `out` if there is one, on the main process."""

    def __init__(
        self,
        model: nn.Module,
        stepper: Stepper,
        out: Path | None,
        *,
        minutes: float,
        shards: Shards | None = None,
    ) -> None:
        self.model, self.stepper, self.out = model, stepper, out
        self.main, self.shards = stepper.accelerator.is_main_process, shards
        self.every, self.began = 60 * minutes, time.monotonic()
        self.saved = self.began
        self.run = Fit()
        self.best: Mapping[str, Tensor] | None = None
        self.before = 0.0
        self.kept = 0  # the step of the newest checkpoint

    def resume(self) -> Fit:
        """Go on from the newest checkpoint, if there is one, which the main process reads for all; return the run."""
        found = None if self.out is None else from_main(partial(latest, self.out / "checkpoints"))
        if found is None:
            return self.run
        tensors, facts = found
        if self.shards is not None:
            tensors = {group: self._sharded(group, held, self.shards.parts) for group, held in tensors.items()}
        self.run, self.best = Fit(**facts), tensors.get("best")
        self.kept = self.run.step
        self.before = self.run.seconds
        self._load(tensors["weights"])
        load_optimizer(self.stepper.optimizer, tensors["optimizer"])
        if self.stepper.guidance is not None and "guidance" in tensors:
            self.stepper.guidance.load(tensors["guidance"])
        if self.main:
            self.stepper.restart(self.run.rows, self.run.loss)
        return self.run

    def read(self) -> None:
        """Bring the counters up to date with the device."""
        self.run.rows, self.run.loss = self.stepper.read(self.out)
        self.run.seconds = self.seconds()

    def seconds(self) -> float:
        """Return the time spent on the run, over all the processes that worked on it one after another."""
        return self.before + time.monotonic() - self.began

    def rate(self) -> float:
        """Return the samples per second since this process began."""
        return self.stepper.seen / max(1e-9, time.monotonic() - self.began)

    def judge(self, worth: float) -> None:
        """Keep the weights if the epoch that ended is the best; at equal worth the later one is kept.

        That is what selecting by `none` means.
        """
        if self.run.best_score is None or worth >= self.run.best_score:
            self.run.best_score, self.run.best_epoch = worth, self.run.epoch
            self.run.best_dev = self.run.dev
            self.best = {name: tensor.clone() for name, tensor in self._named().items()}

    def restore_best(self) -> None:
        """Put the best epoch's weights back into the model; of epoch 0, with the head at its full size."""
        if self.best is not None:
            self._load(self.best)
        if self.shards is not None:
            self.shards.leave()
        if self.best is not None and self.run.best_epoch == 0 and self.run.head_factor != 1:
            scale_head(self.model, 1 / self.run.head_factor)

    def log(self) -> None:
        """Write a line for each epoch."""
        if self.out is not None and self.main:
            write_log(self.out, self.run.history)

    def save_if_due(self) -> None:
        """Write a checkpoint if the last one is old enough."""
        # Clocks differ, and with shards nobody can save alone.
        if self.is_due() if self.shards is None else from_main(self.is_due):
            self.save()

    def is_due(self) -> bool:
        """Return whether the last checkpoint is old enough for another."""
        return self._can_save() and time.monotonic() - self.saved >= self.every

    def save(self) -> bool:
        """Write a checkpoint, if there is a folder and anything has been learnt; return whether.

        In the middle of an epoch each process knows its own share of it: there, all of them must call this.
        """
        if self.out is None or not self._can_save():
            return False
        if self.run.batch > 0 and self.stepper.accelerator.num_processes > 1:
            self._bring_together()
        if self.main or self.shards is not None:  # everybody is needed to put shards together
            groups = self._groups()
        if self.main:
            save_state(self.out / "checkpoints", self.run.step, groups, self.run.saved())
        self.saved, self.kept = time.monotonic(), self.run.step
        return True

    def _can_save(self) -> bool:
        return self.out is not None and bool(self.run.step > 0 or self.run.history)

    def _bring_together(self) -> None:
        """Give the main process what all have counted of this epoch, and every one what all have recorded.

        Whoever goes on counts from there, so that nothing is counted twice at the epoch's end.
        """
        if self.stepper.guidance is not None:
            self.stepper.guidance.gather()
        share_statistics(self.model, self.stepper.accelerator)
        rows, loss = over_all(self.run.rows, self.run.loss)
        self.run.rows, self.run.loss = (rows, loss) if self.main else (0, 0.0)
        self.stepper.restart(self.run.rows, self.run.loss)

    def _groups(self) -> dict[str, Mapping[str, Tensor]]:
        groups: dict[str, Mapping[str, Tensor]] = {
            "weights": self._named(),
            "optimizer": optimizer_tensors(self.stepper.optimizer),
        }
        if self.best is not None:
            groups["best"] = self.best
        if self.stepper.guidance is not None:
            groups["guidance"] = self.stepper.guidance.tensors()
        if self.shards is None:
            return groups
        return {group: self._sharded(group, held, self.shards.whole) for group, held in groups.items()}

    def _sharded(
        self,
        group: str,
        held: Mapping[str, Tensor],
        change: Callable[[str, Mapping[str, Tensor]], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Return a group put together from shards, or cut into them; what guides is not sharded."""
        return dict(held) if group == "guidance" else change(group, held)

    def _named(self) -> dict[str, Tensor]:
        """Return the model's weights by name, tied ones under each of their names; of shards, this process's."""
        if self.shards is not None:
            return self.shards.named()
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        if self.shards is not None:
            self.shards.load(weights)
        else:
            self.model.load_state_dict(weights)
