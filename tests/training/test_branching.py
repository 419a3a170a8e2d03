"""Work beside the critical path of a captured step; outside of a capture it runs in line."""

from typing import Any

import pytest
import torch

from calmix.training.branching import Branch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")


def test_outside_of_a_capture_everything_runs_in_line() -> None:
    branch, x = Branch(), torch.ones(3)
    with branch.forked(x):
        x += 1
    assert branch.streams == {}
    assert x.tolist() == [2, 2, 2]
    branch.join()


@needs_gpu
@pytest.mark.parametrize("streams", [1, 3])
def test_captured_branches_are_replayed_and_joined(streams: int) -> None:
    branch, x, sides = Branch(streams), torch.ones(1000, device="cuda"), torch.zeros(5, 1000, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for place, side in enumerate(sides):
            y = x * (2 + place)
            with branch.forked(y):
                side.copy_(y * 3)
            del y
        z = [x + i for i in range(50)]  # would take the memory of y, were it given away
        branch.join()
        total = sides + z[0]
    graph.replay()
    torch.cuda.synchronize()
    assert len(branch.streams) == streams
    assert total[:, 0].tolist() == [7, 10, 13, 16, 19]
    assert torch.equal(total, total[:, :1].expand_as(total))


@needs_gpu
def test_a_gradient_that_is_read_beside_is_not_added_to_in_place() -> None:
    branch, side = Branch(), torch.zeros(1000, device="cuda")
    x = torch.ones(1000, device="cuda", requires_grad=True)

    class Read(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with branch.forked(gradient):
                for _ in range(50):  # long enough for what follows to come in between
                    side.copy_(gradient)
            return gradient * 2

    def step() -> None:
        y = x * 1
        (gradient,) = torch.autograd.grad((y + Read.apply(y)) * 3, x, torch.ones_like(x))
        branch.join()
        found.copy_(gradient)

    found = torch.zeros(1000, device="cuda")
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert found.unique().tolist() == [9]
        assert side.unique().tolist() == [3]
    assert branch.held == []


@needs_gpu
def test_joining_nothing_is_nothing() -> None:
    Branch().join()
