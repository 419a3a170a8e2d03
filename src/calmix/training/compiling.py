"""Kernels tried at the same time, which a first step would ask for one after the other."""

import torch
from torch import nn

from calmix.dynamics import noting
from calmix.kernels import Agrees, try_together
from calmix.models import encoding, reads_pixels
from calmix.training import batches, embeddings, fusing, layers

__all__ = ["compile_kernels"]


def compile_kernels(model: nn.Module, device: torch.device, *, half: bool) -> None:
    """Find out which kernels can be used to train a model on a GPU, which compiles them.

    The first time on a machine that takes seconds for each, a good part of which is waiting for other programs.
    """
    if device.type != "cuda":
        return
    asked: list[Agrees] = [noting.agrees_with_torch, batches.agrees_with_torch]
    if not reads_pixels(model):
        asked.append(encoding.agrees_with_torch)
    if half:
        fitting = [layers.check_for(model), embeddings.check_for(model)]
        asked += [fusing.agrees_with_torch, *(check for check in fitting if check is not None)]
    try_together(asked, device)
