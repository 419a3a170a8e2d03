"""The confusion matrix: which classes are taken for which."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calmix.report.figures import literal, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Confusion", "draw_confusion", "prepare_confusion"]

# Above this, numbers no longer fit into the cells.
_NUMBERED = 20


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each class (row) was predicted as each (column)."""

    counts: NDArray[np.int64]
    classes: tuple[str, ...]

    @property
    def shares(self) -> NDArray[np.float64]:
        """The counts as a share of their row; 0 in rows of classes that do not occur."""
        totals = self.counts.sum(axis=1, keepdims=True)
        return np.asarray(self.counts / np.maximum(totals, 1), dtype=np.float64)

    def mistakes(self, most: int = 12) -> list[tuple[int, int, int]]:
        """Return the most frequent mistakes as (class, predicted as, how often)."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        rows, columns = np.unravel_index(order, wrong.shape)
        found = zip(rows.tolist(), columns.tolist(), wrong[rows, columns].tolist(), strict=True)
        return [(row, column, count) for row, column, count in found if count]


def prepare_confusion(probs: NDArray[np.float64], labels: NDArray[np.int64], classes: tuple[str, ...]) -> Confusion:
    """Return the matrix of labelled predictions."""
    k = len(classes)
    counts = np.bincount(labels * k + probs.argmax(axis=1), minlength=k * k).reshape(k, k)
    return Confusion(counts.astype(np.int64), classes)


def draw_confusion(confusion: Confusion, title: str = "") -> "Figure":
    """Return a figure of the matrix, shaded by the share of the row."""
    k = len(confusion.classes)
    side = float(np.clip(1.8 + 0.55 * k, 4.0, 16.0))
    names = [literal(name if len(name) <= 24 else f"{name[:23]}…") for name in confusion.classes]
    with look():
        figure = new_figure(side + 0.6, side)
        axes = figure.add_subplot()
        axes.imshow(confusion.shares, cmap="Blues", vmin=0, vmax=1)
        size = 9 if k <= _NUMBERED else max(3.0, 9 * _NUMBERED / k)
        axes.set_xticks(range(k), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=size)
        axes.set_yticks(range(k), names, fontsize=size)
        if k <= _NUMBERED:
            for (row, column), count in np.ndenumerate(confusion.counts):
                colour = "white" if confusion.shares[row, column] > 0.55 else "0.15"
                axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_xlabel("predicted")
        axes.set_ylabel("label")
        axes.set_title(literal(title), loc="left")
        axes.spines[:].set_visible(False)
    return figure
