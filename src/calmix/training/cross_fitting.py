"""A dev set for few rows: each is predicted by a network that was trained on the others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.training.evaluating import json_safe
from calmix.training.keeping import Fit
from calmix.training.selecting import Selection, dev_figures, joint, score

__all__ = ["FoldLogits", "cross_fit"]

# Trains on the first examples and says, by epoch, what the network makes of the second.
TrainFold = Callable[[Examples, Examples, int], dict[int, NDArray[np.float32]]]


@dataclass(frozen=True, eq=False)
class FoldLogits:
    """What networks that had not learnt from them said of the training rows, after each epoch."""

    by_epoch: dict[int, NDArray[np.float32]]
    labels: NDArray[np.int64]

    def best_epoch(self, select: Selection) -> int:
        """Return the epoch after which they were best; the last one, where that is to be kept."""
        worth = {epoch: score(dev_figures(logits, self.labels), select) for epoch, logits in self.by_epoch.items()}
        return max(worth, key=lambda epoch: (worth[epoch], epoch))

    def told_in(self, done: Fit) -> Fit:
        """Return a finished run whose history has, for each epoch, the figures of the folds in the place of dev's."""
        history = []
        for entry in done.history:
            logits = self.by_epoch.get(entry["epoch"])
            figures: dict[str, Any] = {}
            if logits is not None:
                figures = {"dev": json_safe(dev_figures(logits, self.labels)), "joint": joint(logits, self.labels)}
            history.append({**entry, **figures})
        return replace(done, history=history)


def cross_fit(examples: Examples, folds: NDArray[np.int64], train_fold: TrainFold) -> FoldLogits:
    """Return what is said of each row in a fold by a network that is trained on all rows but that fold's."""
    told: dict[int, NDArray[np.float32]] = {}
    judged = np.flatnonzero(folds >= 0)
    for fold in range(int(folds.max()) + 1):
        inside = np.flatnonzero(folds[judged] == fold)
        found = train_fold(examples.take(np.flatnonzero(folds != fold)), examples.take(judged[inside]), fold)
        for epoch, logits in found.items():
            width = logits.shape[1]
            if epoch not in told:
                told[epoch] = np.full((len(judged), width), -np.inf, dtype=np.float32)
            elif width > told[epoch].shape[1]:  # of multiple choice, a row with more choices than any before
                more = np.full((len(judged), width - told[epoch].shape[1]), -np.inf, dtype=np.float32)
                told[epoch] = np.concatenate([told[epoch], more], axis=1)
            told[epoch][inside, :width] = logits
    return FoldLogits(told, examples.labels[judged])
