"""A step that cannot be captured is run as it is. Fakes play CUDA here; test_capturing.py has the real one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from calmix.errors import InputError
from calmix.training import train
from calmix.training.capturing import Captures, capture_note


class FakeGraph:
    """A CUDA graph that can be begun, ended and replayed, and knows which one is being captured."""

    current: "FakeGraph | None" = None
    ended: list[str]

    def __init__(self) -> None:
        self.ended = []
        self.replays = 0

    def register_generator_state(self, generator: torch.Generator) -> None:
        pass

    def capture_begin(self, pool: Any) -> None:
        FakeGraph.current = self

    def capture_end(self) -> None:
        FakeGraph.current = None
        self.ended.append("end")

    def reset(self) -> None:
        self.ended.append("reset")

    def replay(self) -> None:
        self.replays += 1


class FakeStream:
    """A stream on which everything has been done already."""

    def wait_stream(self, other: "FakeStream") -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand-ins for what a capture asks of CUDA."""

    @contextmanager
    def on(_stream: Any) -> Iterator[None]:
        yield

    fakes = {
        "CUDAGraph": FakeGraph,
        "Stream": FakeStream,
        "current_stream": FakeStream,
        "stream": on,
        "graph_pool_handle": lambda: (0, 1),
        "mem_get_info": lambda: (1, 1),
        "memory_reserved": lambda: 0,
        "empty_cache": lambda: None,
        "default_generators": (torch.default_generator,),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    yield
    FakeGraph.current = None


ROWS = torch.arange(4)


class Steps:
    """A step that fails while it is captured, having drawn from the generators and begun work elsewhere."""

    def __init__(self, error: Exception) -> None:
        self.error, self.generator = error, torch.Generator()
        self.draws: list[float] = []
        self.left_open = 0
        self.joined = 0

    def __call__(self, rows: torch.Tensor) -> None:
        drawn = float(torch.rand((), generator=self.generator)) + float(torch.rand(()))
        self.left_open += 1
        if FakeGraph.current is not None:
            raise self.error
        self.draws.append(drawn)
        self.left_open = 0

    def join(self) -> None:
        self.joined += 1

    def forget(self) -> None:
        self.left_open = 0

    def captures(self) -> Captures:
        return Captures(self.generator, join=self.join, forget=self.forget)

    def seed(self) -> None:
        self.generator.manual_seed(1)
        torch.manual_seed(2)


REFUSED = RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")


@pytest.mark.usefixtures("cuda")
def test_a_step_that_cannot_be_captured_is_run_from_the_same_state() -> None:
    step = Steps(REFUSED)
    captures = step.captures()
    for _ in range(4):
        step.seed()
        captures.run("kind", "shape", ROWS, step)
    assert len(step.draws) == 4
    assert len(set(step.draws)) == 1
    assert (step.joined, step.left_open) == (1, 0)  # tried once, and what that left is taken back
    assert captures.graphs == {}
    assert captures.failed == f"RuntimeError: {REFUSED}"


@pytest.mark.usefixtures("cuda")
def test_graphs_that_were_captured_before_are_dropped_with_the_first_that_fails() -> None:
    step = Steps(REFUSED)
    captures = step.captures()
    done: list[str] = []
    for _ in range(2):
        captures.run("other kind", "shape", ROWS, lambda _rows: done.append("captured"))
    assert len(captures.graphs) == 1
    for _ in range(2):
        captures.run("kind", "shape", ROWS, step)
    assert captures.graphs == {}
    captures.run("other kind", "shape", ROWS, lambda _rows: done.append("run as it is"))
    assert done == ["captured", "captured", "run as it is"]


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("nothing is left"), InputError("a recipe's own words")])
def test_what_is_no_fault_of_the_capture_is_raised(error: Exception) -> None:
    step = Steps(error)
    captures = step.captures()
    captures.run("kind", "shape", ROWS, step)
    with pytest.raises(type(error), match=str(error)):
        captures.run("kind", "shape", ROWS, step)
    assert FakeGraph.current is None
    assert captures.failed is None


@pytest.mark.usefixtures("cuda")
def test_a_capture_that_cuda_gave_up_is_cleaned_up_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[str] = []

    def refuse(_graph: FakeGraph) -> None:
        FakeGraph.current = None
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(FakeGraph, "capture_end", refuse)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *_, n=name: undone.append(n), raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    renewed: list[int] = []
    monkeypatch.setattr("calmix.training.capturing._renew", lambda generator: renewed.append(id(generator)))
    step = Steps(REFUSED)
    captures = step.captures()
    for _ in range(3):
        step.seed()
        captures.run("kind", "shape", ROWS, step)
    assert undone == ["_cuda_endAllocateToPool", "_cuda_releasePool"]
    assert renewed == [id(step.generator), id(torch.default_generator)]
    assert len(set(step.draws)) == 1


@pytest.mark.usefixtures("cuda")
def test_a_network_that_cannot_be_captured_trains_as_it_would_have_and_says_so(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"dev": tiny.examples(24, seed=1), "model": checkpoint(), "epochs": 2, "batch_size": 16}
    plain = train(tiny.examples(96), out=tmp_path / "plain", recipe="input-mixup", **options)
    forward = nn.Linear.forward

    def refusing(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if FakeGraph.current is not None:
            raise REFUSED
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", refusing)
    monkeypatch.setattr("calmix.training.stepping._can_be_captured", lambda *_: True)
    notes: list[str] = []
    run = train(tiny.examples(96), out=tmp_path / "run", recipe="input-mixup", on_note=notes.append, **options)
    assert [entry["loss"] for entry in run.metrics["epochs"]] == [entry["loss"] for entry in plain.metrics["epochs"]]
    assert [note for note in notes if note.startswith("speed: ")] == capture_note(f"RuntimeError: {REFUSED}")
    assert set(capture_note(f"RuntimeError: {REFUSED}")) <= set(run.metrics["notes"])


def test_nothing_is_said_where_steps_are_captured() -> None:
    assert capture_note(None) == []
