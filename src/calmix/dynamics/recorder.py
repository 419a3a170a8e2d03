"""`Recorder`: running statistics of every training sample, in a fixed amount of memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from calmix.dynamics.history import RIGHT, UNSEEN, History, every
from calmix.dynamics.noting import NOTES, NOTES_BEFORE, SUMS, note, note_by_kernel, one_kernel_notes, vote
from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.dynamics.values import Dynamics, Pass

__all__ = ["Recorder", "row_lookup"]


class Recorder:
    """What training reveals about each of `n_samples` samples, whatever the number of epochs and classes.

    152 bytes a sample on the device, and at most 64 in main memory: the `History` by epoch, of which `update` knows
    nothing. Nothing in `update` waits for the device or depends on values for its shapes, all buffers stay where they
    are, and a step that contains it can be captured as a CUDA graph, once an `update` has been made outside of it, for
    which a kernel may have to be compiled (rows of -1 record nothing).

    Args:
        n_samples: the size of the training set.
        device: where the logits will be. On Apple's `mps`, which has no float64, buffers are kept on the CPU.
        keep_logits: also keep the logits of every epoch, 4 · epochs · samples · classes bytes in main memory
            and one epoch of them on the device, which is allocated by the first `update`.
    """

    def __init__(self, n_samples: int, *, device: torch.device | str = "cpu", keep_logits: bool = False) -> None:
        if n_samples < 1:
            raise ValueError(f"a Recorder needs at least one sample, not {n_samples}")
        self.n_samples = n_samples
        self.device = torch.device("cpu" if torch.device(device).type == "mps" else device)
        self.keep_logits = keep_logits
        self.epochs = 0
        # Slot 0 takes what is not to be recorded; sample i has slot i + 1.
        self._sums = torch.zeros(n_samples + 1, len(SUMS), dtype=torch.float64, device=self.device)
        self._notes_before = torch.tensor(NOTES_BEFORE, dtype=torch.float64, device=self.device)
        self._notes = self._notes_before.repeat(n_samples + 1, 1)
        # Observations, summed probability and right answers up to the last epoch's end: what has been added since is
        # the epoch's own. So a step has nothing to do for the history.
        self._before = torch.zeros(n_samples, 3, dtype=torch.float64, device=self.device)
        self._history: dict[int, Tensor] = {}
        self._current: Tensor | None = None
        self._past: list[Tensor] = []

    @torch.no_grad()
    def update(self, logits: Tensor | ArrayLike, labels: Tensor | ArrayLike, rows: Tensor | ArrayLike) -> None:
        """Record a batch: logits [b, classes], labels [b], and where each row stands in the training set [b].

        Rows of -1 (padding) and observations that are not valid (see `observe`) are not recorded. Copies of a
        sample inside one batch are successive observations, in the order of the batch; in the vote for the
        rival, the last of them counts. A label or row that does not exist is refused on the CPU, and not recorded
        by the kernel of a GPU.
        """
        logits, labels, rows = _tensor(logits, "logits"), _tensor(labels, "labels"), _tensor(rows, "rows")
        if (
            logits.ndim != 2
            or logits.shape[1] == 0
            or labels.shape != logits.shape[:1]
            or rows.shape != logits.shape[:1]
        ):
            raise InputError(
                "update wants logits [b, classes], labels [b] and rows [b], "
                f"not {list(logits.shape)}, {list(labels.shape)} and {list(rows.shape)}"
            )
        if len(rows) == 0:
            return
        _check_whole(labels, "labels")
        _check_whole(rows, "rows")
        logits, labels = logits.detach().to(self.device), labels.to(self.device, torch.int64)
        rows = rows.to(self.device, torch.int64)
        if not self.keep_logits and one_kernel_notes(self._sums, rows):
            note_by_kernel(self._sums, self._notes, logits, labels, rows)
            return
        order, slot = note(self._sums, self._notes, logits, labels, rows)
        if self.keep_logits:
            if self._current is None:
                self._current = self._blank(logits.shape[1])
            self._current.index_copy_(0, slot, logits[order].float())

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Count an epoch, remember what it said about each sample and, if logits are kept, put its logits aside."""
        self.epochs += 1
        total = self._totals()
        count, probability, right = (total - self._before).unbind(1)
        self._before.copy_(total)
        code = (100 * probability / count).round().clamp(0, 100) + RIGHT * (2 * right > count)
        self._history[self.epochs] = torch.where(count > 0, code, UNSEEN).to(torch.uint8).cpu()
        self._thin()
        if self._current is not None:
            self._past.append(self._current[1:].cpu().clone())
            self._current.fill_(torch.nan)

    @torch.no_grad()
    def merge(self, other: "Recorder") -> "Recorder":
        """Add what another recorder of the same training set saw, as if it had come after; return this one.

        Samples that only one of the two saw keep their numbers to the last bit. For a sample that both saw,
        means and spreads are those of all observations (up to rounding), and forgetting counts the step from
        this one's last observation to the other's first: merge in the order of time. In training with several
        processes, where a sample wanders between them, give each a recorder for the current epoch alone, and
        merge these into one at the epoch's end.
        """
        if other.n_samples != self.n_samples:
            raise ValueError(f"cannot merge recorders of {self.n_samples} and {other.n_samples} samples")
        a, b = self._columns(), other._columns(self.device)
        ours, theirs = a["count"] > 0, b["count"] > 0
        shift = torch.where(ours & theirs, b["shift"] - a["shift"], 0.0)
        a["square"] += b["square"] + 2 * shift * b["offset"] + b["count"] * shift.square()
        a["offset"] += b["offset"] + b["count"] * shift
        a["forgotten"] += b["forgotten"] + ((a["last_right"] == 1) & (b["first_right"] == 0)).double()
        rival, weight = vote(a["rival"], a["rival_weight"], b["rival"], b["rival_weight"])
        a["rival"].copy_(rival)
        a["rival_weight"].copy_(weight)
        for name in ("shift", "first_right"):
            a[name].copy_(torch.where(ours, a[name], b[name]))
        for name in ("last_loss", "last_right", "predicted", "label"):
            a[name].copy_(torch.where(theirs, b[name], a[name]))
        for name in ("count", "margin", "loss", "right", "rival_probability"):
            a[name] += b[name]
        self._merge_history(other)
        if self.keep_logits:
            self._merge_logits(other)
        return self

    def _merge_history(self, other: "Recorder") -> None:
        """Take over what the other's epochs said, under their numbers; what it has not yet closed, ours will."""
        self._before += other._before.to(self.device)
        self.epochs = max(self.epochs, other.epochs)
        for epoch, theirs in other._history.items():
            ours = self._history.get(epoch)
            self._history[epoch] = theirs if ours is None else torch.where(theirs == UNSEEN, ours, theirs)
        self._thin()

    def _thin(self) -> None:
        step = every(self.epochs)
        self._history = {epoch: codes for epoch, codes in sorted(self._history.items()) if epoch % step == 0}

    def _totals(self) -> Tensor:
        b = {name: values[1:] for name, values in self._columns().items()}
        return torch.stack((b["count"], b["count"] * b["shift"] + b["offset"], b["right"]), 1)

    def _merge_logits(self, other: "Recorder") -> None:
        if other._current is not None:
            theirs = other._current.to(self.device)
            ours = self._blank(theirs.shape[1]) if self._current is None else self._current
            self._current = ours.copy_(torch.where(theirs.isnan().all(1, keepdim=True), ours, theirs))
        for epoch, theirs in enumerate(other._past):
            if epoch == len(self._past):
                self._past.append(torch.full_like(theirs, torch.nan))
            self._past[epoch] = torch.where(theirs.isnan().all(1, keepdim=True), self._past[epoch], theirs)

    def reset(self) -> None:
        """Forget everything, without moving a buffer."""
        self._sums.zero_()
        self._notes.copy_(self._notes_before)
        self._before.zero_()
        self.epochs, self._past, self._history = 0, [], {}
        if self._current is not None:
            self._current.fill_(torch.nan)

    @torch.no_grad()
    def statistics(self) -> dict[str, Tensor]:
        """Return the statistics of each sample [n_samples], on the device; see `Dynamics` for what they mean."""
        b = {name: values[1:] for name, values in self._columns().items()}
        n = torch.where(b["count"] > 0, b["count"], torch.nan)
        variance = (b["square"] - b["offset"].square() / n) / n
        return {
            "labels": b["label"].long(),
            "aum": b["margin"] / n,
            "confidence": (b["shift"] + b["offset"] / n).clamp(0, 1),
            "variability": variance.clamp(min=0).sqrt(),
            "correctness": b["right"] / n,
            "forgetting": b["forgotten"].long(),
            "learnt": b["right"] > 0,
            "observations": b["count"].long(),
            "loss": b["loss"] / n,
            "last_loss": torch.where(b["count"] > 0, b["last_loss"], torch.nan),
            "last_prediction": b["predicted"].long(),
            "rival": b["rival"].long(),
            "rival_confidence": b["rival_probability"] / n,
        }

    def dynamics(
        self,
        *,
        ids: Sequence[str] | None = None,
        label_names: Sequence[str] = (),
        recorded_on: "Pass" = "training pass",
    ) -> "Dynamics":
        """Return what has been recorded so far as a value; ids are the positions unless given."""
        from calmix.dynamics.values import Dynamics

        if ids is not None:
            _row_of(ids)
        return Dynamics(
            ids=tuple(map(str, range(self.n_samples))) if ids is None else tuple(ids),
            label_names=tuple(label_names),
            recorded_on=recorded_on,
            epochs=self.epochs,
            history=self.history(),
            **{name: values.cpu().numpy() for name, values in self.statistics().items()},
        )

    def history(self) -> History | None:
        """Return what each epoch said about each sample; None before the first has ended."""
        if not self._history:
            return None
        return History(tuple(self._history), torch.stack(list(self._history.values()), 1).numpy())

    def logits(self) -> Tensor:
        """Return the logits kept [epochs, samples, classes], float32 in main memory; NaN where not seen."""
        if not self.keep_logits:
            raise ValueError("logits were not kept: make the recorder with keep_logits=True")
        return torch.stack(self._past) if self._past else torch.empty(0, self.n_samples, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of everything, as tensors that safetensors can save."""
        state = {"sums": self._sums[1:].clone(), "notes": self._notes[1:].clone(), "before": self._before.clone()}
        state["epochs"] = torch.tensor(self.epochs)
        if self._history:
            state["history_epochs"] = torch.tensor(list(self._history))
            state["history"] = torch.stack(list(self._history.values()))
        if self._current is not None:
            state["current_logits"] = self._current[1:].clone()
        if self._past:
            state["logits"] = self.logits()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict`, exactly; buffers stay where they are, so captured steps stay valid."""
        if len(state["sums"]) != self.n_samples:
            raise ValueError(f"a state of {len(state['sums'])} samples, but {self.n_samples} are recorded")
        self.reset()
        self._sums[1:].copy_(state["sums"])
        self._notes[1:].copy_(state["notes"])
        self._before.copy_(state["before"])
        self.epochs = int(state["epochs"])
        if "history" in state:
            kept = zip(state["history_epochs"].tolist(), state["history"], strict=True)
            self._history = {epoch: codes.cpu().clone() for epoch, codes in kept}
        if self.keep_logits and "logits" in state:
            self._past = [values.cpu().clone() for values in state["logits"]]
        if self.keep_logits and "current_logits" in state:
            if self._current is None:
                self._current = self._blank(state["current_logits"].shape[1])
            self._current[1:].copy_(state["current_logits"])

    def _columns(self, device: torch.device | None = None) -> dict[str, Tensor]:
        """The columns by name: views, unless they have to be moved."""
        sums, notes = (values.to(device or self.device).unbind(1) for values in (self._sums, self._notes))
        return dict(zip((*SUMS, *NOTES), (*sums, *notes), strict=True))

    @torch.inference_mode(False)  # an inference tensor could not be written to later
    def _blank(self, classes: int) -> Tensor:
        return torch.full((self.n_samples + 1, classes), torch.nan, device=self.device)


def row_lookup(ids: Sequence[str]) -> Callable[[Sequence[str]], Tensor]:
    """Return a function from the ids of a batch to their rows, for loops whose batches carry ids."""
    row_of = _row_of(ids)

    def rows(batch: Sequence[str]) -> Tensor:
        unknown = [name for name in batch if name not in row_of]
        if unknown:
            raise InputError(f"no such id: {unknown[0]!r}")
        return torch.tensor([row_of[name] for name in batch], dtype=torch.int64)

    return rows


def _row_of(ids: Sequence[str]) -> dict[str, int]:
    """The row of each id; ids that occur more than once, or are not strings, are refused."""
    from calmix.dynamics.values import check_strings

    check_strings(ids, "ids")
    row_of = {name: row for row, name in enumerate(ids)}
    if len(row_of) != len(ids):
        raise InputError(f"{len(ids) - len(row_of)} of {len(ids)} ids occur more than once")
    return row_of


def _tensor(values: Tensor | ArrayLike, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a tensor or an array of numbers, not {type(values).__name__}") from None


def _check_whole(values: Tensor, name: str) -> None:
    if values.dtype.is_floating_point or values.dtype.is_complex:
        raise InputError(f"{name} has dtype {values.dtype}; it must hold integers")
