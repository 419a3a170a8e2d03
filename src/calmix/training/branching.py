"""Work that a captured step does beside its critical path: forked to other streams, joined before the update."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from calmix.kernels import capturing

__all__ = ["Branch"]


class Branch:
    """Further streams of a graph that is being captured.

    In a replayed graph, kernels that do not wait for each other run at the same time, and at small batches each
    fills only a corner of the GPU. Outside of a capture everything runs in line.

    Args:
        streams: for short pieces of work, which take turns. What is done on a lane of its own, one after the other,
            has a stream of its own.
    """

    def __init__(self, streams: int = 1) -> None:
        self.count = streams
        self.streams: dict[str | int, torch.cuda.Stream] = {}
        self.open: dict[str | int, None] = {}
        self.held: list[Tensor] = []
        self.turns = 0

    @contextmanager
    def forked(self, *reads: Tensor, lane: str | None = None) -> Iterator[None]:
        """Run what is inside beside what follows; `reads` are the tensors from outside that it looks at."""
        if not capturing():
            yield
            return
        at: str | int = self.turns % self.count if lane is None else lane
        self.turns += lane is None
        if at not in self.streams:
            self.streams[at] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream = self.streams[at]
        stream.wait_stream(torch.cuda.current_stream())
        # Held until all is joined: autograd adds to a gradient in place if nobody else has it, whoever is still reading
        # it beside. And if it is freed all the same, its memory must not be given to another tensor.
        self.held.extend(reads)
        for tensor in reads:
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            yield
        self.open[at] = None

    def join(self, lane: str | None = None) -> None:
        """Wait for all that was forked, or for what was on a lane."""
        for at in list(self.open) if lane is None else [lane]:
            if at in self.open:
                torch.cuda.current_stream().wait_stream(self.streams[at])
                del self.open[at]
        if lane is None:
            self.held.clear()

    def forget(self) -> None:
        """Drop what a capture that failed has left open."""
        self.open.clear()
        self.held.clear()
