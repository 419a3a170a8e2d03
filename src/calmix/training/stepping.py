"""One update of the weights: the forward and backward of a batch, in parts, on this process."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from calmix.errors import TrainingError
from calmix.mixing import Recipe, Step, check_per_row
from calmix.models import anatomy, reads_pixels
from calmix.training.batches import Part, TrainingSet
from calmix.training.branching import Branch
from calmix.training.capturing import Captures, capture_note
from calmix.training.compiling import compile_kernels
from calmix.training.fusing import Fused
from calmix.training.guiding import Guidance
from calmix.training.launching import wrap
from calmix.training.lowering import Lowered
from calmix.training.optimising import gradient_norms, lay_out_gradients, set_learning_rate, update_unless_bad
from calmix.training.seeding import seed_device, seed_for
from calmix.training.sharding import Shards

__all__ = ["Stepper"]


class Stepper:
    """One update of the weights per call; nothing is read back from the device until `read`.

    On one GPU the whole update is captured as a CUDA graph, one for each shape of batch that comes back, and
    replayed: at small batches nearly all the time of a step is the host's.

    With `beside`, the models and optimisers of further runs of the same kind, all are trained side by side. Each
    part then has the rows of all of them, one after the other, counted on from run to run: row i of the second run
    of n samples is n + i.

    With `shards`, `model` is theirs, and the optimiser has their parts of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        data: TrainingSet,
        recipe: Recipe,
        accelerator: Accelerator,
        optimizer: torch.optim.Optimizer,
        *,
        fill: Mapping[str, int],
        seed: int,
        clip: float,
        guidance: Guidance | None = None,
        capture: bool = True,
        beside: Sequence[tuple[nn.Module, torch.optim.Optimizer]] = (),
        shards: Shards | None = None,
    ) -> None:
        device = accelerator.device
        self.model, self.data, self.recipe, self.accelerator = model, data, recipe, accelerator
        self.optimizer, self.fill, self.seed, self.clip = optimizer, fill, seed, clip or float("inf")
        self.optimizers = [optimizer, *(other for _, other in beside)]
        self.guidance, self.shards = guidance, shards
        self.channels_last = reads_pixels(model)
        self.parts, self.variants = anatomy(model), recipe.variants(model)
        self.runs = len(self.optimizers)
        alone = _can_be_captured(model, accelerator)
        half = accelerator.mixed_precision == "bf16"
        compile_kernels(model, data, device, half=half and alone)
        self.branch = Branch(streams=3)
        self.lowered: Lowered | None = None
        if beside or (alone and half):
            dtype = torch.bfloat16 if half else torch.float32
            self.lowered = Lowered([model, *(other for other, _ in beside)], dtype=dtype, branch=self.branch)
        self.fused: Fused | None = None
        if self.lowered is not None and Fused.serves(self.optimizers, self.lowered.copies):
            self.fused = Fused(self.optimizers, self.lowered.owners, self.lowered.copies)
            self.lowered.stretch = self.fused.gradients
        self.wrapped: Any = self.lowered or shards or wrap(model, accelerator)
        self.generator = torch.Generator(device)
        # Summed over the whole epoch, in one order, however often it is read: a resumed run logs the same bits.
        exact = torch.float32 if device.type == "mps" else torch.float64
        self.loss = torch.zeros(self.runs, device=device, dtype=exact)
        self.bad = torch.full((self.runs,), -1.0, device=device)
        self.number = torch.zeros((), device=device)
        self.rows = self.seen = 0
        self.begun = False
        self.captures = (
            Captures(self.generator, join=self.branch.join, forget=self._forget) if capture and alone else None
        )

    def step(self, parts: list[Part], number: int, lr: float) -> None:
        """Take the gradient of every part of a batch and update the weights once."""
        # The variant is drawn once a step for all, on the host: a captured step is chosen by it.
        variant = seed_for(self.seed, number, 2) % self.variants
        set_learning_rate(self.optimizers, lr)
        self.number.fill_(number)
        if self.lowered is not None and not self.begun:
            self.lowered.refresh()  # a run that is resumed has been given other weights since
        self.begun = True
        self.rows += sum(len(part.rows) * part.counts for part in parts) // self.runs
        self.seen += parts[-1].batch * self.runs
        if self.captures is not None and len(parts) == 1:
            self._seed(number, 0)
            part = parts[0]
            self.data.stage(part)
            told = () if self.guidance is None else tuple(self.guidance.signals)
            shape = (len(part.rows), part.width, part.choices)
            # Convolutions choose how they compute for each shape, and kernels are compiled for some lengths of text and
            # numbers of classes: neither may happen during a capture.
            length = None if self.lowered is None else self.lowered.length_for(part.width)
            kind = (variant, told, shape if self.channels_last else part.choices, length)

            def whole(rows: Tensor) -> None:
                self._gradient(rows, part, variant)
                self._update()

            self.captures.run(kind, shape, part.rows, whole)
            return
        for index, part in enumerate(parts):
            self.data.stage(part)
            self._seed(number, index)
            with nullcontext() if part.last or self.lowered or self.shards else self.accelerator.no_sync(self.wrapped):
                self._gradient(part.rows, part, variant)
        self._update()

    def _seed(self, number: int, index: int) -> None:
        rank = self.accelerator.process_index
        seed_device(seed_for(self.seed, number, 0, index, rank), self.accelerator.device)
        self.generator.manual_seed(seed_for(self.seed, number, 1, index, rank))

    def _gradient(self, rows: Tensor, part: Part, variant: int) -> None:
        samples = rows if self.runs == 1 else rows % len(self.data)
        step = Step(
            model=self.model,
            wrapped=self.wrapped,
            inputs=self.data.inputs_of(samples, part, self.generator),
            targets=self.data.targets_of(samples, part.choices),
            rows=rows,
            generator=self.generator,
            parts=self.parts,
            class_weights=self.data.class_weights,
            fill=self.fill,
            variant=variant,
            signals={} if self.guidance is None else self.guidance.signals,
            runs=self.runs,
            beside=self.branch,
        )
        losses = self.recipe.loss(step)
        check_per_row(losses, len(rows))
        if self.guidance is not None and part.counts and step.observed is not None:
            with self.branch.forked(*step.observed, lane="record"):
                self.guidance.observe(step)
        loss = losses.detach().view(self.runs, -1).sum(1)
        # Wrapped models average gradients over processes: scaled by their number, it is the sum. A loss that is
        # not finite may have a gradient that is: times NaN, it stops the update here and in every other process.
        # (0 · loss is NaN then. `torch.where` with two numbers would copy them to the device, and wait.)
        scale = 0 * loss + part.counts * self.accelerator.num_processes / part.batch
        losses.backward(scale[:, None].expand(-1, step.size).reshape(-1))  # type: ignore[no-untyped-call]
        if part.counts:
            self.loss += loss

    def _update(self) -> None:
        self.branch.join()
        if self.lowered is not None and self.fused is not None:
            self.fused.update(self.lowered.gradients(), clip=self.clip, number=self.number, bad=self.bad)
            return
        if self.lowered is not None:
            self.lowered.hand_over()
        elif self.shards is not None:
            self.shards.hand_over()
        elif self.channels_last:
            lay_out_gradients(self.optimizers)
        norms = gradient_norms(self.optimizers)
        if self.shards is not None:
            norms = self.shards.total(norms)
        self._note(update_unless_bad(self.optimizers, norms, clip=self.clip))
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if self.lowered is not None:
            self.lowered.refresh()

    def _forget(self) -> None:
        """Drop what a step that was not finished has left."""
        self.branch.forget()
        if self.lowered is not None:
            self.lowered.forget()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    @property
    def notes(self) -> list[str]:
        """What the user should know of how steps are taken."""
        return [] if self.captures is None else capture_note(self.captures.failed)

    def _note(self, failed: Tensor) -> None:
        """Remember the first step at which a run went bad."""
        self.bad.copy_(torch.where((failed > 0) & (self.bad < 0), self.number, self.bad))

    def read(self, out: Path | None) -> tuple[int, float]:
        """Return how many rows this process trained in this epoch, and their summed loss."""
        loss, bad = float(self.loss), float(self.bad)
        if bad >= 0:
            where = "" if out is None else f" The last good checkpoint, if any, is in {out / 'checkpoints'}."
            raise TrainingError(
                f"the loss or its gradient stopped being finite at step {int(bad) + 1}; "
                f"the weights were not touched by it. Try a lower --lr.{where}"
            )
        return self.rows, loss

    def read_all(self) -> tuple[int, list[float], list[int]]:
        """Return the rows of each run in this epoch, the summed loss of each, and where each went bad (or -1)."""
        return self.rows, self.loss.tolist(), [int(step) for step in self.bad.tolist()]

    def restart(self, rows: int = 0, loss: float = 0.0) -> None:
        """Begin an epoch, or go on with one that has come so far."""
        self.rows = rows
        self.loss.fill_(loss)


def _can_be_captured(model: nn.Module, accelerator: Accelerator) -> bool:
    """Return whether there is one process on a GPU, whose activations are kept.

    Those that are recomputed would be of the model's own weights, not of copies; and a capture cannot draw again what
    was drawn before.
    """
    on_gpu = accelerator.num_processes == 1 and accelerator.device.type == "cuda"
    return on_gpu and not getattr(model, "is_gradient_checkpointing", False)
