"""Where a run's head begins, and what the network is worth before it is fine-tuned."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.mixing import TEACHER, Signal
from calmix.models import FACTOR, Arithmetic, FittedHead, HeadStart, Packed, Pixels, Pooling, fit_head_to
from calmix.training.batches import TrainingSet
from calmix.training.defaults import is_pretrained
from calmix.training.launching import from_main
from calmix.training.loop import Beginning, Progress, predict_everywhere
from calmix.training.optimising import check_hyper

__all__ = ["Start", "begin_head", "head_targets", "start_for"]


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    head: HeadStart
    pooling: Pooling


def start_for(pretrained: str, head: HeadStart | None, pooling: Pooling | None, *, epochs: int | None = None) -> Start:
    """Return where training a model begins, given what was asked: heads are fitted where there are trained weights."""
    check_hyper({"head": head, "pooling": pooling})
    can = is_pretrained(pretrained)
    if head == "fitted" and not can:
        raise InputError(f"--head fitted: {pretrained} begins with random weights, whose features say nothing")
    kind = head or ("fitted" if can else "random")
    if epochs == 0 and kind == "random":
        raise InputError("--epochs 0 is a fitted head alone, and a random one is not fitted")
    return Start(kind, pooling or ("mean" if kind == "fitted" else "first"))


def begin_head(
    network: nn.Module,
    data: TrainingSet,
    *,
    dev: tuple[Packed | Pixels, NDArray[np.int64]] | None,
    accelerator: Accelerator,
    trained: bool,
    set_inner: bool,
    signals: Mapping[str, Signal] | None = None,
    folds: NDArray[np.int64] | None = None,
    choose_by_dev: bool = True,
    precision: str = "fp32",
    on_progress: Callable[[Progress], None] | None = None,
) -> Beginning | None:
    """Give a network the head that its run begins with, and return what it is worth as it stands.

    A trained head stays as it is. Another is fitted to the training rows; the network is left with a small one, and
    what is returned tells of the same one at full size. With `set_inner` the dense layer before it is set, too. None
    where there is nothing to fit it to.
    """
    began = time.monotonic()
    network.to(accelerator.device)
    if trained:
        logits = None if dev is None else predict_everywhere(network, dev[0], accelerator)
        of_rows = None if folds is None else predict_everywhere(network, data.packed, accelerator)
        note = "head: it is trained for these labels already, and is kept"
        return Beginning(logits, of_rows, 1.0, time.monotonic() - began, note)
    targets = head_targets(data, signals or {})
    if targets is None:
        return None
    arithmetic: Arithmetic = "bf16" if precision == "bf16" else "fp32"
    fit = partial(
        fit_head_to,
        network,
        data.packed,
        targets,
        class_weights=data.class_weights,
        dev=dev,
        folds=folds,
        choose_by_dev=choose_by_dev,
        set_inner=set_inner,
        precision=arithmetic,
        progress=None if on_progress is None else _shown(on_progress, len(data), began),
    )
    found: FittedHead = from_main(lambda: fit().on_cpu())
    found.put_into(network, FACTOR)
    note = f"head: fitted to {found.rows:,} rows before fine-tuning"
    return Beginning(found.dev_logits, found.fold_logits, FACTOR, time.monotonic() - began, note)


def head_targets(data: TrainingSet, signals: Mapping[str, Signal]) -> Tensor | None:
    """Return what a head is fitted to: a teacher's probabilities or label distributions [rows, classes], or labels.

    None where no row has any of these: a teacher that is asked in each step only has said nothing yet.
    """
    taught = signals.get(TEACHER)
    if isinstance(taught, Tensor):
        return torch.softmax(taught.float(), 1)
    if data.targets is not None:
        return data.targets.float()
    return data.labels if bool((data.labels >= 0).any()) else None


def _shown(show: Callable[[Progress], None], rows: int, began: float) -> Callable[[int], None]:
    """Return what shows how far the look at the rows is, about once a second: as an epoch 0."""
    done, last = 0, began

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        if (now := time.monotonic()) - last >= 1.0:
            last = now
            show(Progress(0, 0, min(done, rows), rows, float("nan"), done / (now - began)))

    return advance
