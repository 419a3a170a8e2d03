"""One update of the weights: the forward and backward of a batch, in parts, on this process."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from calmix.errors import TrainingError
from calmix.mixing import Recipe, Step
from calmix.models import anatomy
from calmix.training.batches import Part, TrainingSet, seed_for
from calmix.training.optimising import step_unless_bad

__all__ = ["Stepper"]


class Stepper:
    """One update of the weights per call; nothing is read back from the device until `read`."""

    def __init__(
        self,
        model: nn.Module,
        data: TrainingSet,
        recipe: Recipe,
        accelerator: Accelerator,
        fill: Mapping[str, int],
        seed: int,
        clip: float,
    ) -> None:
        self.model, self.data, self.recipe, self.accelerator = model.to(accelerator.device), data, recipe, accelerator
        self.fill, self.seed, self.clip = fill, seed, clip or float("inf")
        self.parts, self.variants = anatomy(model), recipe.variants(model)
        self.wrapped = accelerator.prepare_model(model)
        self.generator = torch.Generator(accelerator.device)
        self.loss = torch.zeros((), device=accelerator.device)
        self.bad = torch.full((), -1.0, device=accelerator.device)
        self.rows = 0

    def step(self, parts: list[Part], number: int, optimizer: torch.optim.Optimizer, lr: float) -> None:
        """Take the gradient of every part of a batch and update the weights once."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        # The variant is drawn once a step for all: a captured step is chosen by it.
        variant = seed_for(self.seed, number, 2) % self.variants
        for index, part in enumerate(parts):
            torch.manual_seed(seed_for(self.seed, number, 0, index, rank))
            self.generator.manual_seed(seed_for(self.seed, number, 1, index, rank))
            step = Step(
                model=self.model,
                wrapped=self.wrapped,
                inputs=self.data.packed.batch(part.rows, width=part.width, choices=part.choices),
                targets=self.data.targets_of(part.rows, part.choices),
                rows=part.rows,
                generator=self.generator,
                parts=self.parts,
                class_weights=self.data.class_weights,
                fill=self.fill,
                variant=variant,
            )
            with nullcontext() if part.last else self.accelerator.no_sync(self.wrapped):
                losses = self.recipe.loss(step).sum() * float(part.counts)
                # Wrapped models average gradients over processes: scaled by their number, it is the sum.
                self.accelerator.backward(losses * (world / part.batch))
                self.loss += losses.detach()
            self.rows += len(part.rows) * part.counts
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for group in optimizer.param_groups:
            group["lr"] = lr
        failed = step_unless_bad(optimizer, norm)
        self.bad = torch.where((failed > 0) & (self.bad < 0), float(number), self.bad)
        optimizer.zero_grad(set_to_none=True)

    def read(self, out: Path | None) -> tuple[int, float]:
        """Return how many rows this process trained since last asked, and their summed loss."""
        rows, loss, bad = self.rows, float(self.loss), float(self.bad)
        self.rows = 0
        self.loss.zero_()
        if bad >= 0:
            where = "" if out is None else f" The last good checkpoint, if any, is in {out / 'checkpoints'}."
            raise TrainingError(
                f"the loss or its gradient stopped being finite at step {int(bad) + 1}; "
                f"the weights were not touched by it. Try a lower --lr.{where}"
            )
        return rows, loss
