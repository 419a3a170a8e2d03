"""Seeds: each step is seeded anew from what it is, so that nothing random has to be saved."""

import numpy as np
import torch

__all__ = ["seed_device", "seed_for"]


def seed_for(*numbers: int) -> int:
    """Return a 63-bit seed from a few numbers.

    Each step is seeded anew from (run, step, …) instead of carrying random state along: a resumed run then
    draws what it would have drawn, with nothing saved.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_device(seed: int, device: torch.device) -> None:
    """Seed what a kind of device and the processor draw by default.

    `torch.manual_seed` does the same for every kind of device that torch knows, present or not: with torch for GPUs it
    notes where it was called from for each absent kind, which takes as long as half a captured step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        module = torch.get_device_module(device)
        getattr(module, "manual_seed_all", module.manual_seed)(seed)
