"""An epoch laid out: which rows each step takes, in which shape, on this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.data import Examples
from calmix.kernels import usable
from calmix.mixing import Pool, Recipe
from calmix.models import Augment, Packed, Pixels

__all__ = ["Part", "TrainingSet", "epoch_steps", "epoch_steps_together", "training_set"]

# So many numbers are written by one program of the kernel.
_BLOCK = 256


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The training samples as the loop reads them: token ids or pixels, and labels, all on the device."""

    packed: Packed | Pixels
    labels: Tensor
    classes: int | None
    """How many classes there are; None for multiple choice, where each row says."""
    targets: Tensor | None = None
    """[samples, classes]: label distributions, where they were given."""
    class_weights: Tensor | None = None
    augment: Augment = "none"
    """What is done to images before each step."""

    def __len__(self) -> int:
        return len(self.packed)

    def to(self, device: torch.device) -> "TrainingSet":
        """Return the same samples with their tensors on `device`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return TrainingSet(
            packed=self.packed.to(device),
            labels=self.labels.to(device),
            classes=self.classes,
            targets=moved(self.targets),
            class_weights=moved(self.class_weights),
            augment=self.augment,
        )

    def expect(self, steps: Sequence[Sequence["Part"]]) -> None:
        """Tell a stream of images what the coming steps will ask for."""
        if isinstance(self.packed, Pixels) and self.packed.stream is not None:
            self.packed.stream.expect([part.host for parts in steps for part in parts if part.host is not None])

    def widths(self) -> set[int]:
        """Return how long texts of a batch may be, padded; none of images."""
        return set() if isinstance(self.packed, Pixels) else self.packed.widths()

    def stage(self, part: "Part") -> None:
        """Bring what a part needs to the device, where it is not there already."""
        if isinstance(self.packed, Pixels) and part.host is not None:
            self.packed.stage(part.host)

    def inputs_of(self, rows: Tensor, part: "Part", generator: torch.Generator) -> dict[str, Tensor]:
        """Return what the model is called with for some rows, images augmented with draws from the generator."""
        if isinstance(self.packed, Pixels):
            return self.packed.augmented(rows, self.augment, generator)
        return self.packed.batch(rows, width=part.width, choices=part.choices)

    def targets_of(self, rows: Tensor, choices: int | None) -> Tensor:
        """Return the label distributions of some rows."""
        if self.targets is not None:
            return self.targets[rows]
        classes = self.classes if choices is None else choices
        assert classes is not None
        # On a GPU in one kernel, as a captured step is as long as its chain of kernels.
        by_kernel = rows.is_cuda and usable(agrees_with_torch, rows.device)
        return (_marked_by_kernel if by_kernel else _marked)(self.labels, rows, classes)


def _marked(labels: Tensor, rows: Tensor, classes: int) -> Tensor:
    # Not `one_hot`, which has no row for a sample without a label: it has no mass at all.
    return (labels[rows][:, None] == torch.arange(classes, device=rows.device)).float()


def _marked_by_kernel(labels: Tensor, rows: Tensor, classes: int) -> Tensor:
    from calmix.kernels.marking import mark

    out = torch.empty(len(rows), classes, device=rows.device)
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        mark[(-(-out.numel() // _BLOCK),)](labels, rows.contiguous(), out, out.numel(), classes, BLOCK=_BLOCK)
    return out


def agrees_with_torch(device: torch.device) -> bool:
    """Return whether some rows, one of them without a label, are marked the same way."""
    labels = torch.tensor([2, -1, 0, 1], device=device)
    rows = torch.tensor([3, 0, 1, 0, 2], device=device)
    return all(torch.equal(_marked_by_kernel(labels, rows, k), _marked(labels, rows, k)) for k in (3, 100))


def training_set(
    examples: Examples,
    packed: Packed | Pixels,
    class_weights: NDArray[np.float64] | None = None,
    *,
    augment: Augment = "none",
) -> TrainingSet:
    """Return labelled examples and their token ids, or pixels, as the loop reads them."""
    return TrainingSet(
        packed=packed,
        labels=torch.from_numpy(examples.labels),
        classes=len(examples.label_names) or None,
        targets=None if examples.targets is None else torch.from_numpy(examples.targets).float(),
        class_weights=None if class_weights is None else torch.from_numpy(class_weights).float(),
        augment=augment,
    )


@dataclass(frozen=True, eq=False)
class Part:
    """What one forward and backward of this process takes: a share of a step's batch."""

    rows: Tensor
    width: int
    choices: int | None
    last: bool
    """Whether the weights are updated after it."""
    batch: int
    """How many rows the whole step has, over all processes."""
    counts: bool = True
    """False for the stand-in row of a process that got none: its loss is weighted 0."""
    host: NDArray[np.int64] | None = None
    """The same rows where the host can read them."""


def epoch_steps(
    data: TrainingSet,
    recipe: Recipe,
    epoch: int,
    *,
    batch_size: int,
    accumulate: int | Callable[[int], int],
    seed: int,
    rank: int,
    world: int,
    signals: Mapping[str, NDArray[Any]] | None = None,
) -> Iterator[list[Part]]:
    """Yield the parts of each step of an epoch; `accumulate` is how many, or tells it by the step's place.

    Every process lays out the same epoch and takes its share of each batch, so that the batch, and with it the
    gradient, is the same however many processes there are. The order goes to the device once.
    """
    batches = _laid_out(data, recipe, epoch, batch_size=batch_size, seed=seed, signals=signals or {})
    order = torch.from_numpy(np.concatenate(batches)).to(data.labels.device)
    start = 0
    for place, batch in enumerate(batches):
        stop = start + len(batch)
        mine = np.arange(start, stop)[rank::world]
        # A process without a row must still take part in the exchange of gradients.
        idle = len(mine) == 0
        # Every so many-th row: a batch may have its easy half first, and each part should have some of both.
        cut = min(accumulate(place) if callable(accumulate) else accumulate, len(mine))
        shares = [np.arange(start, start + 1)] if idle else [mine[i::cut] for i in range(cut)]
        step = [_part(data, share, batch[share - start], order, len(batch)) for share in shares]
        step[-1] = replace(step[-1], last=True, counts=not idle)
        yield step
        start = stop


def epoch_steps_together(
    data: TrainingSet,
    recipe: Recipe,
    epoch: int,
    *,
    batch_size: int,
    seeds: Sequence[int],
    signals: Sequence[Mapping[str, NDArray[Any]]],
) -> Iterator[list[Part]]:
    """Yield the steps of an epoch of several runs side by side, each run laid out by its own seed and signals.

    A step takes as many rows of each: where batches differ in size, or runs in their number, some rows of the
    shorter come twice. Rows are counted on from run to run.
    """
    each = [
        _laid_out(data, recipe, epoch, batch_size=batch_size, seed=seed, signals=told)
        for seed, told in zip(seeds, signals, strict=True)
    ]
    longest = max(map(len, each))
    picked = [[batches[i % len(batches)] for batches in each] for i in range(longest)]
    sizes = [max(map(len, batches)) for batches in picked]
    rows = [np.stack([np.resize(b, size) for b in batches]) for batches, size in zip(picked, sizes, strict=True)]
    shift = len(data) * np.arange(len(seeds))[:, None]
    order = torch.from_numpy(np.concatenate([(r + shift).ravel() for r in rows])).to(data.labels.device)
    start = 0
    for batch, size in zip(rows, sizes, strict=True):
        choices = None if data.packed.counts is None else int(data.packed.counts[batch[0, 0]])
        yield [Part(order[start : start + batch.size], data.packed.width(batch.ravel()), choices, True, size)]
        start += batch.size


def _laid_out(
    data: TrainingSet, recipe: Recipe, epoch: int, *, batch_size: int, seed: int, signals: Mapping[str, NDArray[Any]]
) -> list[NDArray[np.int64]]:
    rng, common = np.random.default_rng([seed, epoch]), np.random.default_rng(epoch)
    even = isinstance(data.packed, Pixels)
    return recipe.batches(Pool(data.packed.host_lengths, data.packed.counts, batch_size, rng, common, signals, even))


def _part(data: TrainingSet, share: NDArray[np.int64], rows: NDArray[np.int64], order: Tensor, batch: int) -> Part:
    stride = int(share[1] - share[0]) if len(share) > 1 else 1
    choices = None if data.packed.counts is None else int(data.packed.counts[rows[0]])
    on_device = order[int(share[0]) : int(share[-1]) + 1 : stride]
    return Part(on_device, data.packed.width(rows), choices, False, batch, host=rows)
