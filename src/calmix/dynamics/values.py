"""`Dynamics`: what a training run revealed about each sample, as a value."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import ArrayLike, NDArray

from calmix.data import read_table, write_table
from calmix.data.origin import shown
from calmix.dynamics.history import History
from calmix.errors import InputError

__all__ = ["Dynamics", "Pass", "check_strings"]

Pass = Literal["training pass", "evaluation pass"]
"""Where the logits came from: the training step itself (dropout on, before the update), or a pass of its own."""

_METADATA = b"calmix.dynamics"
_MEASURES = ("aum", "confidence", "variability", "correctness", "loss", "last_loss", "rival_confidence")
_COUNTS = ("forgetting", "observations")
_CLASSES = ("labels", "last_prediction", "rival")
_COLUMN = {"labels": "label"}


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Statistics of each training sample over its observations, one per epoch as a rule.

    A sample that was never observed has 0 observations and NaN measures.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    """The label each sample was trained with, last observed; -1 if never."""
    aum: NDArray[np.float64]
    """Area under the margin: the mean of gold logit minus largest other logit; NaN too without any other class."""
    confidence: NDArray[np.float64]
    """Mean probability of the gold class."""
    variability: NDArray[np.float64]
    """Population standard deviation of that probability: 0 after one observation, whatever the sample is like."""
    correctness: NDArray[np.float64]
    """Share of observations predicted right."""
    forgetting: NDArray[np.int64]
    """How often the sample went from right to wrong between successive observations."""
    learnt: NDArray[np.bool_]
    """Whether it was ever predicted right; one that was not has nothing to forget."""
    observations: NDArray[np.int64]
    loss: NDArray[np.float64]
    """Mean cross-entropy."""
    last_loss: NDArray[np.float64]
    """Cross-entropy at the last look: the last observation, or a pass after training (`with_last_look`)."""
    last_prediction: NDArray[np.int64]
    """The class predicted at the last look; -1 if never observed."""
    rival: NDArray[np.int64]
    """The other class the model leant to: the winner of a vote over observations, each for its most probable
    class other than the gold one, weighted by its probability. Right whenever one class has over half of the
    weight. -1 if never observed, or without any other class."""
    rival_confidence: NDArray[np.float64]
    """Mean probability of the most probable class other than the gold one."""
    label_names: tuple[str, ...] = ()
    recorded_on: Pass = "training pass"
    epochs: int = 0
    history: History | None = None
    """The label's probability and whether it was right, epoch by epoch; None where no epoch was closed."""
    head_loss: NDArray[np.float64] | None = None
    """Cross-entropy before fine-tuning, by a fitted head that had not seen the sample (`with_head`), or NaN."""

    def __post_init__(self) -> None:
        check_strings(self.ids, "ids")
        check_strings(self.label_names, "label_names")
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, np.ndarray) and values.shape != (len(self),):
                raise ValueError(f"{len(self)} ids, but {field.name} of shape {values.shape}")
        if self.history is not None and len(self.history.codes) != len(self):
            raise ValueError(f"{len(self)} ids, but a history of {len(self.history.codes)}")
        if self.label_names and self.n_classes > len(self.label_names):
            raise InputError(f"{len(self.label_names)} label_names, but class {self.n_classes - 1} was recorded")

    @classmethod
    def from_logits(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        ids: Sequence[str] | None = None,
        label_names: Sequence[str] = (),
        recorded_on: Pass = "training pass",
    ) -> "Dynamics":
        """Return the dynamics of logits [epochs, samples, classes]; a row of NaN was not seen in that epoch.

        Logarithms of probabilities will do. There −inf may mean two things: a probability of 0, or a choice that the
        row does not have. A label is never a choice that is not there, so −inf at the label is a probability of 0: it
        counts as the smallest positive number of its precision. Elsewhere −inf takes no part.
        """
        import torch

        from calmix.dynamics.recorder import Recorder

        scores, given = np.asarray(logits), np.asarray(labels)
        if given.size and given.dtype.kind not in "biu":
            raise InputError(f"labels has dtype {given.dtype}; it must hold integers, the classes counted from 0")
        gold = torch.as_tensor(given.astype(np.int64))
        if scores.ndim != 3 or gold.shape != scores.shape[1:2]:
            raise ValueError(
                "from_logits wants logits [epochs, samples, classes] and labels [samples], "
                f"not {list(scores.shape)} and {list(gold.shape)}"
            )
        recorder, rows = Recorder(scores.shape[1]), torch.arange(scores.shape[1])
        for epoch in scores:
            recorder.update(torch.as_tensor(_with_possible_labels(epoch, gold.numpy())), gold, rows)
            recorder.end_epoch()
        dynamics = recorder.dynamics(ids=ids, label_names=label_names, recorded_on=recorded_on)
        return replace(dynamics, labels=gold.numpy())

    def with_last_look(self, logits: ArrayLike) -> "Dynamics":
        """Return the dynamics with loss and prediction of a pass made after training: logits [samples, classes].

        It is not an observation: nothing else changes. Samples that were never observed stay so.
        """
        look, valid = self._look(logits, "with_last_look")
        return replace(
            self,
            last_loss=np.where(valid, look.loss.numpy(), self.last_loss),
            last_prediction=np.where(valid, look.predicted.long().numpy(), self.last_prediction),
        )

    def with_head(self, logits: ArrayLike) -> "Dynamics":
        """Return the dynamics with what fitted heads said of samples that they were not fitted to.

        `logits` are [samples, classes], of frozen features by cross-fitting; a row of NaN was predicted by none. Labels
        that people got wrong stand out there: nothing has learnt them yet. It is no observation.
        """
        look, valid = self._look(logits, "with_head")
        return replace(self, head_loss=np.where(valid, look.loss.numpy(), np.nan))

    def _look(self, logits: ArrayLike, name: str) -> tuple[Any, NDArray[np.bool_]]:
        """Return what a pass over all samples says of each, and of which it says something."""
        import torch

        from calmix.dynamics.observing import observe

        scores, fewest = np.asarray(logits), int(self.labels.max(initial=0)) + 1
        if scores.ndim != 2 or len(scores) != len(self) or scores.shape[1] < fewest:
            raise InputError(
                f"{name} wants logits [{len(self)} samples, {fewest} or more classes], not {list(scores.shape)}"
            )
        look = observe(torch.as_tensor(_with_possible_labels(scores, self.labels)), torch.as_tensor(self.labels))
        return look, look.valid.numpy() & (self.observations > 0)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Dynamics({len(self)} samples, {self.epochs} epochs, {self.recorded_on})"

    @property
    def n_classes(self) -> int:
        """How many classes there are, as far as can be told from names, labels and predictions."""
        highest = max((int(getattr(self, name).max(initial=-1)) for name in _CLASSES), default=-1)
        return max(len(self.label_names), highest + 1)

    @property
    def was_observed(self) -> bool:
        """Whether any sample was observed at all."""
        return bool((self.observations > 0).any())

    @property
    def has_spread(self) -> bool:
        """Whether any sample was observed twice: otherwise every variability is 0 and says nothing."""
        return bool((self.observations > 1).any())

    def take(self, rows: ArrayLike) -> "Dynamics":
        """Return the samples at `rows`, in that order."""
        index = np.asarray(rows)
        if index.dtype == np.bool_:
            raise TypeError("take wants rows, not a mask: use np.flatnonzero(mask)")
        index = index.astype(np.int64)
        arrays = {name: getattr(self, name)[index] for name in (*_MEASURES, *_COUNTS, *_CLASSES, "learnt")}
        arrays["head_loss"] = None if self.head_loss is None else self.head_loss[index]
        history = None if self.history is None else self.history.take(index)
        return replace(self, ids=tuple(self.ids[row] for row in index), history=history, **arrays)

    def for_ids(self, ids: Sequence[str]) -> "Dynamics":
        """Return the samples with these ids, in that order; the map's model need not be the one trained next."""
        check_strings(ids, "ids")
        row_of = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in ids if name not in row_of]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(ids)} samples have no recorded dynamics ({missing[0]!r} is the first); "
                "record them on the same training set (a run that split its dev data off has none of those)"
            )
        return self.take([row_of[name] for name in ids])

    def to_table(self) -> pa.Table:
        """Return a table with a row per sample; classes by name if they have names, null where not observed."""
        seen = self.observations > 0
        columns: dict[str, Any] = {"id": pa.array(self.ids, pa.string())}
        columns["label"] = self._classes_out(self.labels)
        for name in ("aum", "confidence", "variability", "correctness"):
            columns[name] = _nullable(getattr(self, name))
        columns["forgetting"] = pa.array(self.forgetting, pa.int64(), mask=~seen)
        columns["learnt"] = pa.array(self.learnt, pa.bool_(), mask=~seen)
        columns["observations"] = pa.array(self.observations, pa.int64())
        columns["loss"], columns["last_loss"] = _nullable(self.loss), _nullable(self.last_loss)
        columns["last_prediction"] = self._classes_out(self.last_prediction)
        columns["rival"] = self._classes_out(self.rival)
        columns["rival_confidence"] = _nullable(self.rival_confidence)
        if self.head_loss is not None:
            columns["head_loss"] = _nullable(self.head_loss)
        about: dict[str, Any] = {
            "label_names": list(self.label_names),
            "recorded_on": self.recorded_on,
            "epochs": self.epochs,
        }
        if self.history is not None:
            columns["history"] = self.history.to_column()
            about["history"] = list(self.history.epochs)
        return pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(about)})

    def save(self, path: str | Path) -> None:
        """Write a Parquet file, whole or not at all."""
        if Path(path).suffix != ".parquet":
            raise InputError(f"{path}: dynamics are saved as Parquet; let the name end in .parquet")
        write_table(self.to_table(), path)

    @classmethod
    def load(cls, path: str | Path) -> "Dynamics":
        """Return what `save` wrote."""
        table, about = read_table(path), _about(path)
        try:
            return cls._from_table(table, json.loads(about))
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise InputError(f"{path}: these dynamics were changed since calmix recorded them") from error

    @classmethod
    def _from_table(cls, table: pa.Table, about: dict[str, Any]) -> "Dynamics":
        names = tuple(about["label_names"])
        columns: dict[str, Any] = {name: _classes_in(table[_COLUMN.get(name, name)], names) for name in _CLASSES}
        for name in _MEASURES:
            columns[name] = np.array(table[name].fill_null(np.nan), dtype=np.float64)
        for name in _COUNTS:
            columns[name] = np.array(table[name].fill_null(0), dtype=np.int64)
        columns["learnt"] = np.array(table["learnt"].fill_null(False), dtype=np.bool_)
        if "head_loss" in table.column_names:
            columns["head_loss"] = np.array(table["head_loss"].fill_null(np.nan), dtype=np.float64)
        return cls(
            ids=tuple(table["id"].to_pylist()),
            label_names=names,
            recorded_on=about["recorded_on"],
            epochs=about["epochs"],
            history=History.from_column(table["history"], tuple(about["history"])) if "history" in about else None,
            **columns,
        )

    def _classes_out(self, codes: NDArray[np.int64]) -> pa.Array:
        if not self.label_names:
            return pa.array(codes, pa.int64(), mask=codes < 0)
        return pa.array(self.label_names, pa.string()).take(pa.array(codes, pa.int64(), mask=codes < 0))


def _with_possible_labels(logits: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[Any]:
    """Return logits [samples, classes] in which −inf at a label is the least a probability above 0 can be."""
    rows = np.flatnonzero((labels >= 0) & (labels < logits.shape[1]))
    rows = rows[np.isneginf(logits[rows, labels[rows]])]
    if not len(rows):
        return logits
    rows = rows[np.isfinite(logits[rows].max(axis=1))]
    possible, least = logits.astype(np.float64), float(np.finfo(logits.dtype).smallest_subnormal)
    possible[rows, labels[rows]] = np.logaddexp.reduce(possible[rows], axis=1) + np.log(least)
    return possible


def check_strings(names: Sequence[str], what: str) -> None:
    """Refuse names that are not strings: a table of them could not be written, nor be found again in one."""
    if isinstance(names, str):
        raise InputError(f"{what} must be a list of strings, not one string: {shown(names)}")
    odd = next((place for place, name in enumerate(names) if not isinstance(name, str)), None)
    if odd is not None:
        raise InputError(f"{what}[{odd}] is {shown(names[odd])}; {what} must be strings")


def _about(path: str | Path) -> bytes:
    """What `save` wrote beside the table, as JSON; any other file is refused."""
    try:
        metadata = pa.parquet.read_schema(str(path)).metadata or {}
    except pa.ArrowInvalid:  # a table, but not Parquet
        metadata = {}
    if _METADATA not in metadata:
        raise InputError(f"{path}: these are not dynamics that calmix recorded")
    about: bytes = metadata[_METADATA]
    return about


def _nullable(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _classes_in(column: pa.ChunkedArray, names: tuple[str, ...]) -> NDArray[np.int64]:
    if not names:
        return np.array(column.fill_null(-1), dtype=np.int64)
    index = {name: code for code, name in enumerate(names)}
    return np.array([-1 if name is None else index[name] for name in column.to_pylist()], dtype=np.int64)
