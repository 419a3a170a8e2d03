"""Work beside the critical path of a captured step; outside of a capture it runs in line."""

import pytest
import torch

from calmix.training.branching import Branch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")


def test_outside_of_a_capture_everything_runs_in_line() -> None:
    branch, x = Branch(), torch.ones(3)
    with branch.forked(x):
        x += 1
    assert branch.stream is None
    assert x.tolist() == [2, 2, 2]
    branch.join()


@needs_gpu
def test_a_captured_branch_is_replayed_and_joined() -> None:
    branch, x, side = Branch(), torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        with branch.forked(y):
            side.copy_(y * 3)
        del y
        z = [x + i for i in range(50)]  # would take the memory of y, were it given away
        branch.join()
        total = side + z[0]
    graph.replay()
    torch.cuda.synchronize()
    assert branch.stream is not None
    assert torch.equal(total, torch.full_like(total, 7.0))


@needs_gpu
def test_joining_nothing_is_nothing() -> None:
    Branch().join()
