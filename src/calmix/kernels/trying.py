"""Whether kernels can be compiled here, and do what torch does: tried once in a process, before they are used."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

__all__ = ["Agrees", "capturing", "near", "tried", "try_together", "usable"]

Agrees = Callable[[torch.device], bool]
"""Uses kernels on a device and returns whether they did what torch does."""

_found: dict[tuple[Agrees, torch.device], bool] = {}


def usable(agrees: Agrees, device: torch.device) -> bool:
    """Return whether kernels do on this device what torch does, as `agrees` finds out by using them.

    What is tried for the first time is compiled and waits for the device, which must not happen during a capture: what
    nobody has asked for before is not used there.
    """
    device = _placed(device)
    if (agrees, device) not in _found:
        if capturing():
            return False
        _found[agrees, device] = tried(agrees, device)
    return _found[agrees, device]


def capturing() -> bool:
    """Return whether what is done now becomes part of a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def tried(agrees: Agrees, device: torch.device) -> bool:
    """Return what `usable` does, tried anew.

    Triton wants a C compiler: where there is none, or anything else is wrong, kernels are not used, and a line of the
    log says why.
    """
    with quietly():
        return _outcome(device, agrees)


def try_together(several: list[Agrees], device: torch.device) -> None:
    """Find out about several kinds of kernels at a time.

    The first time on a machine each has to be compiled, most of which is waiting for compilers.
    """
    device = _placed(device)
    new = [agrees for agrees in several if (agrees, device) not in _found]
    if len(new) > 1:
        with quietly(), ThreadPoolExecutor(len(new)) as pool:
            for agrees, outcome in zip(new, pool.map(partial(_outcome, device), new), strict=True):
                _found[agrees, device] = outcome


def _placed(device: torch.device) -> torch.device:
    """Return which GPU is meant where none is said: tensors say which they are on, and ask about that."""
    unsaid = device.type == "cuda" and device.index is None
    return torch.device("cuda", torch.cuda.current_device()) if unsaid else device


def _outcome(device: torch.device, agrees: Agrees) -> bool:
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return agrees(device)
    except Exception as error:  # whatever a compiler, or the lack of one, comes up with
        logging.getLogger(__name__).info("Triton's kernels are not used: %s", error)
        return False


def near(found: Tensor, wanted: Tensor) -> bool:
    """Return whether two outcomes in bf16, which has three digits, are the same but for rounding."""
    far, size = (found.float() - wanted.float()).norm(), wanted.float().norm()
    return bool(far <= 0.03 * size + 1e-3)


@contextmanager
def quietly() -> Iterator[None]:
    """Show nothing on stderr, of compilers that are called neither: what they lack is one line of the log."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
