"""Kernels tried at the same time, which a first step would ask for one after the other."""

from collections.abc import Iterable

import torch
from torch import nn

from calmix.dynamics import noting
from calmix.kernels import Agrees, try_together
from calmix.mixing import fused
from calmix.models import encoding, reads_pixels
from calmix.training import batches, embeddings, fusing, layers

__all__ = ["compile_kernels"]


def compile_kernels(
    model: nn.Module, device: torch.device, *, half: bool, widths: Iterable[int] = (), classes: int | None = None
) -> None:
    """Find out which kernels can be used to train a model on a GPU, which compiles them.

    The first time on a machine that takes seconds for each, a good part of which is waiting for other programs.

    Args:
        model: what is trained.
        device: where.
        half: whether in bf16, by kernels of layers and of the update.
        widths: of the texts it will be given.
        classes: that it tells apart, if these are always the same.
    """
    if device.type != "cuda":
        return
    asked: list[Agrees] = [noting.agrees_with_torch, batches.agrees_with_torch]
    if classes is not None and (check := fused.losses_check(classes)) is not None:
        asked.append(check)
    if not reads_pixels(model):
        asked.append(encoding.agrees_with_torch)
    if half:
        begins = embeddings.check_for(model)
        asked += [fusing.agrees_with_torch, *layers.checks_for(model, widths), *([] if begins is None else [begins])]
    try_together(asked, device)
