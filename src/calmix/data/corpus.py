"""The shipped corpus, Desk: customer messages whose true class probabilities are known.

`docs/corpus.md` tells how it was made.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from calmix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INTENTS", "SPLITS", "corpus_path", "load_truth", "truth"]

INTENTS = ("account", "billing", "cancellation", "complaint", "delivery", "refund", "technical")
SPLITS = ("train", "dev", "test", "ood")


class Labelled(Protocol):
    """Anything with a table and the names of its classes, such as `calmix.data.Examples`."""

    @property
    def table(self) -> "pa.Table":
        """The rows, with the hidden columns of the corpus."""

    @property
    def label_names(self) -> Sequence[str]:
        """The classes, in the order of a model's outputs."""


def corpus_path(split: str) -> Path:
    """Return the CSV file of a split: train, dev, test or ood."""
    if split not in SPLITS:
        raise InputError(f"the corpus has no split {split!r}: use one of {', '.join(SPLITS)}")
    # calmix is always installed as files, never as a zip: the resource is a path.
    return Path(str(files("calmix.data").joinpath("corpus", f"desk-{split}.csv")))


def load_truth(table: "pa.Table", label_names: Sequence[str]) -> NDArray[np.float64]:
    """Return the true class probabilities [n, K] of rows of the corpus, columns as in `label_names`."""
    if "_truth" not in table.column_names:
        raise InputError("the table has no column '_truth': only the shipped corpus knows its true probabilities")
    if sorted(label_names) != list(INTENTS):
        raise InputError(f"the labels must be those of the corpus, {', '.join(INTENTS)}, in any order")
    rows = [json.loads(str(row)) for row in table.column("_truth").to_pylist()]
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(INTENTS))
    return values[:, [INTENTS.index(name) for name in label_names]]


def truth(examples: Labelled) -> NDArray[np.float64]:
    """Return the true class probabilities [n, K] of examples read from the corpus."""
    return load_truth(examples.table, examples.label_names)
