"""Steps captured as CUDA graphs and replayed: the host then launches one thing instead of hundreds."""

import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from calmix.errors import InputError, TrainingError

__all__ = ["Captures", "capture_note"]


@dataclass(frozen=True, eq=False)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: Tensor


class Captures:
    """Runs a step of a given kind and shape: captured when it comes first, then replayed.

    The first step of each kind is run as it is: it warms everything up that must not happen during a capture.

    The step must be the same work for the same key whatever its values: no value may reach the host, and what
    changes from step to step (rows, learning rate, step number, seeds) must live in tensors and generators.

    A step that cannot be captured is run as it is, from the same state, and so are all that follow: `failed` says why.

    Args:
        generator: what the step draws from, beside torch's default generator.
        join: has the capturing stream wait for the other streams that the step uses; called when a capture fails.
        forget: takes back what a step that was not finished has left in Python objects.
    """

    def __init__(
        self,
        generator: torch.Generator,
        *,
        join: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.generator, self.join, self.forget = generator, join, forget
        self.warm: set[Hashable] = set()
        self.graphs: dict[Hashable, _Graph] = {}
        self.failed: str | None = None
        self.stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, kind: Hashable, shape: Hashable, rows: Tensor, step: Callable[[Tensor], None]) -> None:
        """Do `step(rows)`."""
        known = self.graphs.get((kind, shape))
        if known is None and kind in self.warm and self.failed is None:
            try:
                known = self.graphs[kind, shape] = self._capture(rows, step)
            except (torch.OutOfMemoryError, InputError, TrainingError):
                raise
            except Exception as error:  # whatever an operation that cannot be captured raises
                self.failed = _in_one_line(error)
            if self.failed is not None:
                # After the exception is gone, whose traceback holds the tensors of the step.
                self.graphs.clear()
                torch.cuda.empty_cache()
        if known is not None:
            known.rows.copy_(rows)
            known.graph.replay()
            return
        self.warm.add(kind)
        # On the stream that captures: what is created now, it will use.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step(rows)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self, rows: Tensor, step: Callable[[Tensor], None]) -> _Graph:
        graph, kept = torch.cuda.CUDAGraph(), rows.clone()
        graph.register_generator_state(self.generator)
        default = torch.cuda.default_generators[rows.device.index or 0]
        generators = (self.generator, default)
        seeds = [generator.initial_seed() for generator in generators]
        # Memory that torch keeps for others cannot be taken from them during a capture.
        if torch.cuda.mem_get_info()[0] < torch.cuda.memory_reserved():
            torch.cuda.empty_cache()
        # Not `torch.cuda.graph`, which has the host wait for the device: that goes on with the steps it was given. But
        # the seeds that all graphs read are written as a capture begins: after those steps, and before the next one.
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool)
                try:
                    step(kept)
                except BaseException:
                    self._abandon(graph, generators)
                    raise
                graph.capture_end()
        finally:
            torch.cuda.current_stream().wait_stream(self.stream)
            # Recording drew nothing, but moved the generators on: put them back for what follows.
            for generator, seed in zip(generators, seeds, strict=True):
                generator.manual_seed(seed)
        return _Graph(graph, kept)

    def _abandon(self, graph: torch.cuda.CUDAGraph, generators: tuple[torch.Generator, ...]) -> None:
        """End a capture whose step failed, so that the process can go on as if it had never begun."""
        with suppress(RuntimeError):  # a capture that CUDA itself has given up takes no more work
            self.join()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the graph is empty is no news
                graph.capture_end()
        except RuntimeError:
            _clean_up(graph, self.pool, generators)
        else:
            graph.reset()
        self.forget()


# Graphs whose capture CUDA gave up: torch's memory allocators may still hold pointers to them.
_broken: list[torch.cuda.CUDAGraph] = []


def _clean_up(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], generators: tuple[torch.Generator, ...]) -> None:
    """Do what `capture_end` leaves undone when CUDA gave the capture up.

    Until then torch takes the capture to be going on: its allocator keeps what is freed, and whoever draws from one
    of the generators is refused.
    """
    _broken.append(graph)
    device = torch.cuda.current_device()
    for undo in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        with suppress(RuntimeError):  # already done, by a version of torch that does it first
            getattr(torch._C, undo)(device, pool)
    for generator in generators:
        _renew(generator)


def _renew(generator: torch.Generator) -> None:
    """Give a generator a state that no capture knows of."""
    generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())


def capture_note(failed: str | None) -> list[str]:
    """Return what to say of a run whose steps could not be captured."""
    if failed is None:
        return []
    return [
        "speed: steps of this network cannot be captured as a CUDA graph, so each operation is launched on its own; "
        f"small batches take several times as long ({failed})"
    ]


def _in_one_line(error: BaseException) -> str:
    """Return the last line of an error: those of the TorchScript interpreter end with what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    wanted = next((line for line in reversed(lines) if "Error" in line or "annot" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {wanted}"[:200]
