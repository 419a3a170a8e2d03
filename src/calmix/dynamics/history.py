"""`History`: how probable each sample's label was epoch by epoch, and whether it was right, in one byte each."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

__all__ = ["MOST_EPOCHS", "RIGHT", "UNSEEN", "History", "every"]

MOST_EPOCHS = 64
"""So many epochs are remembered at most: of more, every second, fourth, eighth …"""
RIGHT = 128
"""Added to the percentage where the prediction was right."""
UNSEEN = 255


def every(epochs: int, most: int = MOST_EPOCHS) -> int:
    """Return the step, a power of two, in which so many epochs are at most `most`."""
    step = 1
    while epochs > step * most:
        step *= 2
    return step


@dataclass(frozen=True, eq=False)
class History:
    """What each epoch said about each sample; `codes` [samples, epochs] is the file's and the page's form of it."""

    epochs: tuple[int, ...]
    """Which epochs these are, counted from 1."""
    codes: NDArray[np.uint8]
    """The label's probability in percent, plus `RIGHT` where predicted right; `UNSEEN` where it was not seen."""

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.shape[1] != len(self.epochs):
            raise ValueError(f"{len(self.epochs)} epochs, but codes of shape {self.codes.shape}")

    @property
    def probability(self) -> NDArray[np.float64]:
        """The label's probability [samples, epochs], to the percent; NaN where a sample was not seen."""
        return np.where(self.codes == UNSEEN, np.nan, (self.codes % RIGHT) / 100)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether a sample was predicted right [samples, epochs], by most of its copies if it has some."""
        return np.asarray((self.codes >= RIGHT) & (self.codes != UNSEEN))

    def take(self, rows: ArrayLike) -> "History":
        """Return the samples at `rows`, in that order."""
        return History(self.epochs, self.codes[np.asarray(rows, dtype=np.int64)])

    def thinned(self, most: int) -> "History":
        """Return at most `most` of the epochs, evenly spread, the first and the last among them."""
        if len(self.epochs) <= most:
            return self
        kept = np.unique(np.linspace(0, len(self.epochs) - 1, max(1, most)).round().astype(np.int64))
        return History(tuple(self.epochs[k] for k in kept), self.codes[:, kept])

    def to_column(self) -> pa.Array:
        """Return a list of codes for each sample."""
        width = len(self.epochs)
        offsets = np.arange(0, self.codes.size + 1, width, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(self.codes.ravel(), pa.uint8()))

    @classmethod
    def from_column(cls, column: pa.ChunkedArray, epochs: tuple[int, ...]) -> "History":
        """Return what `to_column` made."""
        flat = np.asarray(column.combine_chunks().flatten(), dtype=np.uint8)
        return cls(epochs, flat.reshape(len(column), len(epochs)))
