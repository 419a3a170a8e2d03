"""A recipe's loss for people with a training loop of their own."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.mixing.checking import check_per_row
from calmix.mixing.distilling import TEACHER
from calmix.mixing.recipe import Guide
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
    dynamics: Dynamics | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the mean loss of a batch under a recipe, ready for `backward()`.

    `batch` is what a transformers model is called with, `labels` included: class indices [rows], or
    distributions [rows, classes]. A batch of images (`pixel_values`) needs no `tokenizer`. `teacher` are a
    teacher's logits for these rows, for recipes that learn from one. `dynamics` are those of the whole training
    set, for recipes that are guided by them, and `rows` says which of its samples these are. `model` may be wrapped
    (accelerate, DistributedDataParallel). A compiled model runs uncompiled: what is edited inside it would be left
    out without any error.
    """
    if not isinstance(recipe, Recipe):
        raise InputError(f"batch_loss takes a Recipe, as erm() or choose('erm') make it, not {recipe!r:.60}")
    model, bare = _unwrapped(model)
    if recipe.taught != (teacher is not None):
        raise InputError(f"this recipe {'needs' if recipe.taught else 'does not look at'} a teacher's logits")
    _check_guide(recipe, dynamics, rows)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    ids = inputs.get("input_ids")
    if ids is not None:
        if tokenizer is None:
            raise InputError("a batch of texts needs the tokenizer they were read with")
        inputs.setdefault("attention_mask", torch.ones_like(ids))
    choices = ids is not None and ids.dim() == 3
    classes = ids.shape[1] if choices else int(bare.config.num_labels)  # type: ignore[union-attr, arg-type]
    targets = _targets(batch, classes)
    signals: dict[str, Tensor] = {}
    if recipe.guide is not None and dynamics is not None:
        places = _places(rows, len(targets), len(dynamics))
        columns = _columns(recipe.guide, dynamics)
        signals = {
            name: torch.from_numpy(values).to(targets.device)[places.to(targets.device)]
            for name, values in columns.items()
        }
    if teacher is not None:
        _check_teacher(teacher, targets, choices=choices)
        signals[TEACHER] = teacher.float()
    variants = recipe.variants(bare)
    variant = 0
    if variants > 1:
        variant = int(torch.randint(variants, (), generator=generator, device=generator.device))
    step = Step(
        model=bare,
        wrapped=model,
        inputs=inputs,
        targets=targets,
        generator=generator,
        rows=torch.arange(len(targets), device=targets.device),
        signals=signals,
        fill={} if ids is None else fill_tokens(tokenizer),
        variant=variant,
    )
    losses = recipe.loss(step)
    check_per_row(losses, len(targets))
    return losses.mean()


def _check_guide(recipe: Recipe, dynamics: Dynamics | None, rows: Tensor | None) -> None:
    """Refuse a recipe whose loss would be that of plain training, since what guides it is not there."""
    if recipe.search is not None:
        raise InputError(
            "this recipe remembers what the model said about every sample, which calmix.train does and a single batch "
            "cannot; search='batch' needs no memory"
        )
    if recipe.guide is None and dynamics is not None:
        raise InputError("this recipe does not look at training dynamics")
    if recipe.guide is not None and dynamics is None:
        raise InputError(
            "this recipe needs training dynamics: give those of a run, Dynamics.load('run/datamap.parquet'), as "
            "dynamics, and as rows which samples are in the batch"
        )
    if dynamics is not None and not isinstance(dynamics, Dynamics):
        raise InputError(f"dynamics must be a Dynamics, as Dynamics.load reads it, not {type(dynamics).__name__}")
    if (rows is None) != (dynamics is None):
        raise InputError("give dynamics and rows together: rows says which of its samples are in the batch")


@lru_cache(maxsize=4)
def _columns(guide: Guide, dynamics: Dynamics) -> Mapping[str, NDArray[Any]]:
    """Return what a guide tells of all samples: the same in every step."""
    return {name: np.asarray(values) for name, values in guide(dynamics).items()}


def _places(rows: Tensor | None, batch: int, samples: int) -> Tensor:
    """Return where each row of the batch stands among the samples of the dynamics."""
    if not isinstance(rows, Tensor) or rows.shape != (batch,) or rows.is_floating_point() or rows.dtype == torch.bool:
        raise InputError(f"rows must be a tensor of {batch} positions in the training set, one for each row")
    # Elsewhere looking at values would wait for the device.
    if rows.device.type == "cpu" and len(bad := rows[(rows < 0) | (rows >= samples)]):
        raise InputError(f"rows holds {int(bad[0])}; the dynamics are of {samples} samples, 0 … {samples - 1}")
    return rows.long()


def _targets(batch: Mapping[str, Tensor], classes: int) -> Tensor:
    """Return the labels of a batch as distributions [rows, classes]."""
    if "labels" not in batch:
        raise InputError(f"the batch has no labels (it has: {', '.join(batch)})")
    labels = batch["labels"]
    if not isinstance(labels, Tensor) or labels.dim() not in (1, 2):
        raise InputError("labels must be a tensor of class indices [rows], or of distributions [rows, classes]")
    if labels.dim() == 2:
        if labels.shape[1] != classes:
            raise InputError(f"labels has {labels.shape[1]} classes, the model has {classes}")
        return labels.float()
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(f"labels has dtype {labels.dtype}; class indices must be integers")
    # Elsewhere looking at values would wait for the device.
    if labels.device.type == "cpu" and len(bad := labels[(labels < 0) | (labels >= classes)]):
        raise InputError(f"labels holds {int(bad[0])}; labels must lie in 0 … {classes - 1}")
    return nn.functional.one_hot(labels.long(), classes).float()


def _check_teacher(teacher: Tensor, targets: Tensor, *, choices: bool) -> None:
    rows, classes = targets.shape
    # Choices that no row of the batch has are left out later.
    wide = teacher.dim() == 2 and (teacher.shape[1] == classes or (choices and teacher.shape[1] > classes))
    if not wide or len(teacher) != rows:
        raise InputError(f"the teacher's logits are {list(teacher.shape)}, the labels [{rows}, {classes}]")


def _unwrapped(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the model as it is to be called, and the transformers model inside it."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel):
        raise InputError("DataParallel splits a batch after its pairs were made: use DistributedDataParallel")
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    if hasattr(bare, "_orig_mod"):
        raise InputError("this model was compiled before it was wrapped: wrap it first, or do not compile it")
    return model, bare
