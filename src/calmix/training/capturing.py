"""Steps captured as CUDA graphs and replayed: the host then launches one thing instead of hundreds."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Captures"]


@dataclass(frozen=True, eq=False)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: Tensor


class Captures:
    """Runs a step of a given kind and shape: captured when it comes first, then replayed.

    The first step of each kind is run as it is: it warms everything up that must not happen during a capture.

    The step must be the same work for the same key whatever its values: no value may reach the host, and what
    changes from step to step (rows, learning rate, step number, seeds) must live in tensors and generators.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.warm: set[Hashable] = set()
        self.graphs: dict[Hashable, _Graph] = {}
        self.stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, kind: Hashable, shape: Hashable, rows: Tensor, step: Callable[[Tensor], None]) -> None:
        """Do `step(rows)`."""
        known = self.graphs.get((kind, shape))
        if known is None and kind in self.warm:
            known = self.graphs[kind, shape] = self._capture(rows, step)
        if known is None:
            self.warm.add(kind)
            # On the stream that captures: what is created now, it will use.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                step(rows)
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        known.rows.copy_(rows)
        known.graph.replay()

    def _capture(self, rows: Tensor, step: Callable[[Tensor], None]) -> _Graph:
        graph, kept = torch.cuda.CUDAGraph(), rows.clone()
        graph.register_generator_state(self.generator)
        seed, default = self.generator.initial_seed(), torch.cuda.default_generators[rows.device.index or 0]
        common = default.initial_seed()
        # Memory that torch keeps for others cannot be taken from them during a capture.
        if torch.cuda.mem_get_info()[0] < torch.cuda.memory_reserved():
            torch.cuda.empty_cache()
        # Not `torch.cuda.graph`, which has the host wait for the device: that goes on with the steps it was given. But
        # the seeds that all graphs read are written as a capture begins: after those steps, and before the next one.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                step(kept)
            except BaseException:
                with suppress(RuntimeError):  # streams that were not joined, which is no news
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        # Recording drew nothing, but moved the generators on: put them back for the replay that follows.
        self.generator.manual_seed(seed)
        default.manual_seed(common)
        return _Graph(graph, kept)
