"""A recipe's loss for people with a training loop of their own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.mixing.distilling import TEACHER
from calmix.mixing.recipes import Recipe
from calmix.mixing.step import Step, fill_tokens

__all__ = ["batch_loss"]


def batch_loss(
    recipe: Recipe,
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    generator: torch.Generator,
    tokenizer: Any = None,
    teacher: Tensor | None = None,
) -> Tensor:
    """Return the mean loss of a batch under a recipe, ready for `backward()`.

    `batch` is what a transformers model is called with, `labels` included: class indices [rows], or
    distributions [rows, classes]. A batch of images (`pixel_values`) needs no `tokenizer`. `teacher` are a
    teacher's logits for these rows, for recipes that learn from one. `model` may be wrapped (accelerate,
    DistributedDataParallel). A compiled model runs uncompiled: what is edited inside it would be left out without
    any error.
    """
    model, bare = _unwrapped(model)
    if recipe.taught != (teacher is not None):
        raise InputError(f"this recipe {'needs' if recipe.taught else 'does not look at'} a teacher's logits")
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    labels = batch["labels"]
    ids = inputs.get("input_ids")
    if ids is not None:
        if tokenizer is None:
            raise InputError("a batch of texts needs the tokenizer they were read with")
        inputs.setdefault("attention_mask", torch.ones_like(ids))
    if labels.dim() == 1:
        choices = ids is not None and ids.dim() == 3
        classes = ids.shape[1] if choices else int(bare.config.num_labels)  # type: ignore[union-attr, arg-type]
        labels = nn.functional.one_hot(labels, classes)
    variants = recipe.variants(bare)
    variant = 0
    if variants > 1:
        variant = int(torch.randint(variants, (), generator=generator, device=generator.device))
    step = Step(
        model=bare,
        wrapped=model,
        inputs=inputs,
        targets=labels.float(),
        generator=generator,
        rows=torch.arange(len(labels), device=labels.device),
        signals={} if teacher is None else {TEACHER: teacher.float()},
        fill={} if ids is None else fill_tokens(tokenizer),
        variant=variant,
    )
    return recipe.loss(step).mean()


def _unwrapped(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the model as it is to be called, and the transformers model inside it."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel):
        raise InputError("DataParallel splits a batch after its pairs were made: use DistributedDataParallel")
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    if hasattr(bare, "_orig_mod"):
        raise InputError("this model was compiled before it was wrapped: wrap it first, or do not compile it")
    return model, bare
