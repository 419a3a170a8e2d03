"""`Recorder`: running statistics of every training sample, in a fixed amount of memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calmix.dynamics.observing import Observation, observe

if TYPE_CHECKING:
    from calmix.dynamics.values import Dynamics, Pass

__all__ = ["Recorder", "row_lookup"]

# Name → (type, value before the first observation). Sums are float64: regions are cut at medians and ranks, where
# thousands of easy samples differ by less than the rounding of a float32 sum over a long run.
_BUFFERS: dict[str, tuple[torch.dtype, float]] = {
    "count": (torch.int32, 0),
    "label": (torch.int32, -1),
    "margin_sum": (torch.float64, 0),
    # Sums of p and p² about each sample's own first p: no cancellation, and a constant p has variance 0 exactly.
    "gold_shift": (torch.float64, -1),
    "gold_sum": (torch.float64, 0),
    "gold_squares": (torch.float64, 0),
    "rival_sum": (torch.float64, 0),
    "right_count": (torch.int32, 0),
    "forgotten": (torch.int32, 0),
    "first_right": (torch.int8, -1),
    "last_right": (torch.int8, -1),
    "last_predicted": (torch.int32, -1),
    # A weighted majority vote over the most probable other class, in two numbers (Boyer & Moore).
    "rival": (torch.int32, -1),
    "rival_weight": (torch.float64, 0),
}


class Recorder:
    """What training reveals about each of `n_samples` samples, whatever the number of epochs and classes.

    74 bytes a sample. Nothing in `update` waits for the device or depends on values for its shapes, all buffers
    stay where they are, and a step that contains it can be captured as a CUDA graph.

    Args:
        n_samples: the size of the training set.
        device: where the logits will be. On Apple's `mps`, which has no float64, buffers are kept on the CPU.
        keep_logits: also keep the logits of every epoch, 4 · epochs · samples · classes bytes in main memory
            and one epoch of them on the device, which is allocated by the first `update` (make it before you
            capture; rows of -1 record nothing).
    """

    def __init__(self, n_samples: int, *, device: torch.device | str = "cpu", keep_logits: bool = False) -> None:
        if n_samples < 1:
            raise ValueError(f"a Recorder needs at least one sample, not {n_samples}")
        self.n_samples = n_samples
        self.device = torch.device("cpu" if torch.device(device).type == "mps" else device)
        self.keep_logits = keep_logits
        self.epochs = 0
        # Slot 0 takes what is not to be recorded; sample i has slot i + 1.
        self._buffers = {
            name: torch.full((n_samples + 1,), start, dtype=dtype, device=self.device)
            for name, (dtype, start) in _BUFFERS.items()
        }
        self._current: Tensor | None = None
        self._past: list[Tensor] = []

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Record a batch: logits [b, classes], labels [b], and where each row stands in the training set [b].

        Rows of -1 (padding) and observations that are not valid (see `observe`) are not recorded. Copies of a
        sample inside one batch are successive observations, in the order of the batch; in the vote for the
        rival, the last of them counts.
        """
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or rows.shape != logits.shape[:1]:
            raise ValueError(
                "update wants logits [b, classes], labels [b] and rows [b], "
                f"not {list(logits.shape)}, {list(labels.shape)} and {list(rows.shape)}"
            )
        if len(rows) == 0:
            return
        logits, labels = logits.detach().to(self.device), labels.to(self.device, torch.int64)
        rows = rows.to(self.device, torch.int64)
        seen = observe(logits, labels)
        slot = torch.where(seen.valid & (rows >= 0), rows + 1, 0)
        if self.device.type == "cpu" and int(slot.max()) > self.n_samples:
            raise IndexError(f"row {int(slot.max()) - 1} in a training set of {self.n_samples} samples")
        # Copies of a sample become neighbours, in the order of the batch.
        slot, order = slot.sort(stable=True)
        self._record(Observation(*(values[order] for values in seen)), labels[order], slot)
        if self.keep_logits:
            if self._current is None:
                self._current = self._blank(logits.shape[1])
            self._current.index_copy_(0, torch.where(_last(slot), slot, 0), logits[order].float())

    def _record(self, seen: Observation, labels: Tensor, slot: Tensor) -> None:
        b = self._buffers
        # Where a value is written rather than added, one copy of each sample writes; the others go to slot 0.
        first = torch.where(_last(slot.flip(0)).flip(0), slot, 0)
        last = torch.where(_last(slot), slot, 0)

        unseen = b["count"][slot] == 0
        b["gold_shift"].scatter_reduce_(0, slot, torch.where(unseen, seen.gold, -1.0), "amax")
        offset = seen.gold - b["gold_shift"][slot]
        right = seen.right.to(torch.int8)
        before = torch.where(first == slot, b["last_right"][slot], right.roll(1))

        b["count"].index_add_(0, slot, torch.ones_like(slot, dtype=torch.int32))
        b["margin_sum"].index_add_(0, slot, seen.margin)
        b["gold_sum"].index_add_(0, slot, offset)
        b["gold_squares"].index_add_(0, slot, offset.square())
        b["rival_sum"].index_add_(0, slot, seen.rival_probability)
        b["right_count"].index_add_(0, slot, right.int())
        b["forgotten"].index_add_(0, slot, ((before == 1) & ~seen.right).int())
        b["first_right"].index_copy_(0, torch.where(unseen, first, 0), right)
        b["last_right"].index_copy_(0, last, right)
        b["last_predicted"].index_copy_(0, last, seen.predicted.int())
        b["label"].index_copy_(0, last, labels.int())
        rival, weight = _vote(b["rival"][slot], b["rival_weight"][slot], seen.rival.int(), seen.rival_probability)
        b["rival"].index_copy_(0, last, rival)
        b["rival_weight"].index_copy_(0, last, weight)

    def end_epoch(self) -> None:
        """Count an epoch and, if logits are kept, put its logits aside."""
        self.epochs += 1
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
        a = self._buffers
        b = {name: values.to(self.device) for name, values in other._buffers.items()}
        ours, theirs = a["count"] > 0, b["count"] > 0
        shift = torch.where(ours & theirs, b["gold_shift"] - a["gold_shift"], 0.0)
        a["gold_squares"] += b["gold_squares"] + 2 * shift * b["gold_sum"] + b["count"] * shift.square()
        a["gold_sum"] += b["gold_sum"] + b["count"] * shift
        a["gold_shift"].copy_(torch.where(ours, a["gold_shift"], b["gold_shift"]))
        a["forgotten"] += b["forgotten"] + ((a["last_right"] == 1) & (b["first_right"] == 0)).int()
        a["first_right"].copy_(torch.where(ours, a["first_right"], b["first_right"]))
        rival, weight = _vote(a["rival"], a["rival_weight"], b["rival"], b["rival_weight"])
        a["rival"].copy_(rival)
        a["rival_weight"].copy_(weight)
        for name in ("last_right", "last_predicted", "label"):
            a[name].copy_(torch.where(theirs, b[name], a[name]))
        for name in ("count", "margin_sum", "rival_sum", "right_count"):
            a[name] += b[name]
        self.epochs = max(self.epochs, other.epochs)
        if self.keep_logits:
            self._merge_logits(other)
        return self

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
        for name, (_, start) in _BUFFERS.items():
            self._buffers[name].fill_(start)
        self.epochs, self._past = 0, []
        if self._current is not None:
            self._current.fill_(torch.nan)

    @torch.no_grad()
    def statistics(self) -> dict[str, Tensor]:
        """Return the statistics of each sample [n_samples], on the device; see `Dynamics` for what they mean."""
        b = {name: values[1:] for name, values in self._buffers.items()}
        n = torch.where(b["count"] > 0, b["count"].double(), torch.nan)
        variance = (b["gold_squares"] - b["gold_sum"].square() / n) / n
        return {
            "labels": b["label"].long(),
            "aum": b["margin_sum"] / n,
            "confidence": (b["gold_shift"] + b["gold_sum"] / n).clamp(0, 1),
            "variability": variance.clamp(min=0).sqrt(),
            "correctness": b["right_count"] / n,
            "forgetting": b["forgotten"].long(),
            "learnt": b["right_count"] > 0,
            "observations": b["count"].long(),
            "last_prediction": b["last_predicted"].long(),
            "rival": b["rival"].long(),
            "rival_confidence": b["rival_sum"] / n,
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

        return Dynamics(
            ids=tuple(map(str, range(self.n_samples))) if ids is None else tuple(ids),
            label_names=tuple(label_names),
            recorded_on=recorded_on,
            epochs=self.epochs,
            **{name: values.cpu().numpy() for name, values in self.statistics().items()},
        )

    def logits(self) -> Tensor:
        """Return the logits kept [epochs, samples, classes], float32 in main memory; NaN where not seen."""
        if not self.keep_logits:
            raise ValueError("logits were not kept: make the recorder with keep_logits=True")
        return torch.stack(self._past) if self._past else torch.empty(0, self.n_samples, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of everything, as tensors that safetensors can save."""
        state = {name: values[1:].clone() for name, values in self._buffers.items()}
        state["epochs"] = torch.tensor(self.epochs)
        if self._current is not None:
            state["current_logits"] = self._current[1:].clone()
        if self._past:
            state["logits"] = self.logits()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict`, exactly; buffers stay where they are, so captured steps stay valid."""
        if len(state["count"]) != self.n_samples:
            raise ValueError(f"a state of {len(state['count'])} samples, but {self.n_samples} are recorded")
        self.reset()
        for name in _BUFFERS:
            self._buffers[name][1:].copy_(state[name])
        self.epochs = int(state["epochs"])
        if self.keep_logits and "logits" in state:
            self._past = [values.cpu().clone() for values in state["logits"]]
        if self.keep_logits and "current_logits" in state:
            if self._current is None:
                self._current = self._blank(state["current_logits"].shape[1])
            self._current[1:].copy_(state["current_logits"])

    def _blank(self, classes: int) -> Tensor:
        return torch.full((self.n_samples + 1, classes), torch.nan, device=self.device)


def _last(slot: Tensor) -> Tensor:
    """Which entries of a sorted tensor are the last of their run of equals."""
    return torch.cat([slot[1:] != slot[:-1], torch.ones_like(slot[:1], dtype=torch.bool)])


def _vote(candidate: Tensor, weight: Tensor, rival: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Return candidate and weight after a vote: a class with over half of all weight is always the candidate."""
    agree = candidate == rival
    return (
        torch.where(agree | ((weight >= more) & (candidate >= 0)), candidate, rival),
        torch.where(agree, weight + more, (weight - more).abs()),
    )


def row_lookup(ids: Sequence[str]) -> Callable[[Sequence[str]], Tensor]:
    """Return a function from the ids of a batch to their rows, for loops whose batches carry ids."""
    row_of = {name: row for row, name in enumerate(ids)}
    if len(row_of) != len(ids):
        raise ValueError(f"{len(ids) - len(row_of)} of {len(ids)} ids occur more than once")

    def rows(batch: Sequence[str]) -> Tensor:
        unknown = [name for name in batch if name not in row_of]
        if unknown:
            raise KeyError(f"no such id: {unknown[0]!r}")
        return torch.tensor([row_of[name] for name in batch], dtype=torch.int64)

    return rows
