"""One update of the weights: the forward and backward of a batch, in parts, on this process."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from calmix.errors import InputError, TrainingError
from calmix.mixing import Recipe, Step
from calmix.models import anatomy
from calmix.training.batches import Part, TrainingSet, seed_for
from calmix.training.capturing import Captures
from calmix.training.guiding import Guidance
from calmix.training.launching import wrap
from calmix.training.optimising import set_learning_rate, step_unless_bad

__all__ = ["Stepper"]


class Stepper:
    """One update of the weights per call; nothing is read back from the device until `read`.

    On one GPU the whole update is captured as a CUDA graph, one for each shape of batch that comes back, and
    replayed: at small batches nearly all the time of a step is the host's.
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
    ) -> None:
        device = accelerator.device
        self.model, self.data, self.recipe, self.accelerator = model, data, recipe, accelerator
        self.optimizer, self.fill, self.seed, self.clip = optimizer, fill, seed, clip or float("inf")
        self.guidance = guidance
        self.parts, self.variants = anatomy(model), recipe.variants(model)
        self.wrapped = wrap(model, accelerator)
        self.generator = torch.Generator(device)
        # Summed over the whole epoch, in one order, however often it is read: a resumed run logs the same bits.
        self.loss = torch.zeros((), device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)
        self.bad = torch.full((), -1.0, device=device)
        self.number = torch.zeros((), device=device)
        self.rows = self.seen = 0
        alone = accelerator.num_processes == 1 and device.type == "cuda"
        self.captures = Captures(self.generator) if capture and alone else None

    def step(self, parts: list[Part], number: int, lr: float) -> None:
        """Take the gradient of every part of a batch and update the weights once."""
        # The variant is drawn once a step for all, on the host: a captured step is chosen by it.
        variant = seed_for(self.seed, number, 2) % self.variants
        set_learning_rate(self.optimizer, lr)
        self.number.fill_(number)
        self.rows += sum(len(part.rows) * part.counts for part in parts)
        self.seen += parts[-1].batch
        if self.captures is not None and len(parts) == 1:
            self._seed(number, 0)
            part = parts[0]
            guided = self.guidance is not None and bool(self.guidance.signals)
            key = (len(part.rows), part.width, part.choices, variant, guided)

            def whole(rows: Tensor) -> None:
                self._gradient(rows, part, variant)
                self._update()

            self.captures.run(key, part.rows, whole)
            return
        for index, part in enumerate(parts):
            self._seed(number, index)
            with nullcontext() if part.last else self.accelerator.no_sync(self.wrapped):
                self._gradient(part.rows, part, variant)
        self._update()

    def _seed(self, number: int, index: int) -> None:
        rank = self.accelerator.process_index
        torch.manual_seed(seed_for(self.seed, number, 0, index, rank))
        self.generator.manual_seed(seed_for(self.seed, number, 1, index, rank))

    def _gradient(self, rows: Tensor, part: Part, variant: int) -> None:
        step = Step(
            model=self.model,
            wrapped=self.wrapped,
            inputs=self.data.packed.batch(rows, width=part.width, choices=part.choices),
            targets=self.data.targets_of(rows, part.choices),
            rows=rows,
            generator=self.generator,
            parts=self.parts,
            class_weights=self.data.class_weights,
            fill=self.fill,
            variant=variant,
            signals={} if self.guidance is None else self.guidance.signals,
        )
        losses = self.recipe.loss(step)
        if losses.shape != rows.shape:
            raise InputError(
                f"the recipe's loss has shape {tuple(losses.shape)} for {len(rows)} rows: it must return one per row"
            )
        loss = losses.sum() * float(part.counts)
        # Wrapped models average gradients over processes: scaled by their number, it is the sum. A loss that is
        # not finite may have a gradient that is: times NaN, it stops the update here and in every other process.
        # (0 · loss is NaN then. `torch.where` with two numbers would copy them to the device, and wait.)
        scale = 0 * loss.detach() + self.accelerator.num_processes / part.batch
        (loss * scale).backward()
        self.loss += loss.detach()
        if self.guidance is not None and part.counts:
            self.guidance.observe(step)

    def _update(self) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        failed = step_unless_bad(self.optimizer, norm)
        self.bad.copy_(torch.where((failed > 0) & (self.bad < 0), self.number, self.bad))
        self.optimizer.zero_grad(set_to_none=True)

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

    def restart(self, rows: int = 0, loss: float = 0.0) -> None:
        """Begin an epoch, or go on with one that has come so far."""
        self.rows = rows
        self.loss.fill_(loss)
