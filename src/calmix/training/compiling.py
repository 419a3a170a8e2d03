"""Kernels tried at the same time, which a first step would ask for one after the other."""

import torch
from torch import nn

from calmix.dynamics import noting
from calmix.kernels import Agrees, try_together
from calmix.mixing import fused
from calmix.models import encoding, reads_pixels
from calmix.training import batches, embeddings, fusing, layers
from calmix.training.batches import TrainingSet

__all__ = ["compile_kernels"]


def compile_kernels(model: nn.Module, data: TrainingSet, device: torch.device, *, half: bool) -> None:
    """Find out which kernels can be used to train a model on a GPU, which compiles them.

    Those are for the lengths that its texts have, and for as many classes. The first time on a machine that takes
    seconds for each, a good part of which is waiting for other programs.
    """
    if device.type != "cuda":
        return
    asked: list[Agrees] = [noting.agrees_with_torch, batches.agrees_with_torch]
    if data.classes is not None and (check := fused.losses_check(data.classes)) is not None:
        asked.append(check)
    if not reads_pixels(model):
        asked.append(encoding.agrees_with_torch)
    if half:
        asked += [fusing.agrees_with_torch, *layers.checks_for(model, data.widths())]
        if (begins := embeddings.check_for(model)) is not None:
            asked.append(begins)
    try_together(asked, device)
