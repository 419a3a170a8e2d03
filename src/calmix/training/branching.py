"""Work that a captured step does beside its critical path: forked to a second stream, joined before the update."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["Branch", "capturing"]


class Branch:
    """A second stream of a graph that is being captured.

    In a replayed graph, kernels that do not wait for each other run at the same time, and at small batches each
    fills only a corner of the GPU. Outside of a capture everything runs in line.
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.forks = 0

    @contextmanager
    def forked(self, *reads: Tensor) -> Iterator[None]:
        """Run what is inside beside what follows; `reads` are the tensors from outside that it looks at."""
        if not capturing():
            yield
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        for tensor in reads:
            # Freed while this branch may still read it, its memory must not be given to another tensor.
            tensor.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            yield
        self.forks += 1

    def join(self) -> None:
        """Wait for all that was forked."""
        if self.forks and self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.forks = 0


def capturing() -> bool:
    """Return whether what is done now becomes part of a graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
