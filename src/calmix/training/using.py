"""What one forward tells the parts of an encoder that go around transformers' own, and the work that all of them do."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calmix.training.branching import Branch

__all__ = ["ROWS", "WARP", "Use", "aligned", "padded"]

# How many rows a program of a backward pass does at a time, and how many numbers of a row's norm a warp has: the more
# rows, the fewer sums are left to add up; the more warps, the longer they wait for each other. The fastest of what was
# tried on an H200 with 800, 4,000 and 8,000 rows.
ROWS, WARP = 4, 1024


@dataclass(frozen=True, eq=False)
class Use:
    """One forward, and its backward."""

    runs: int
    mask: Tensor
    """[texts, width]: which tokens are attended to."""
    seeds: Tensor
    """What dropout is drawn from: one for each site of it."""
    branch: Branch | None
    """Where gradients of weights are computed beside the backward pass."""
    uses: Counter[int]
    """How often each weight was used."""
    home: Callable[[Tensor], Tensor]
    """Where the gradient of a weight is to be written."""

    @property
    def width(self) -> int:
        """The tokens of a text."""
        return self.mask.shape[1]

    @property
    def texts(self) -> int:
        """The texts of a run."""
        return len(self.mask) // self.runs

    @property
    def tokens(self) -> int:
        """The tokens of a run."""
        return self.texts * self.width

    @property
    def blocks(self) -> int:
        """How many programs there are for the rows of a run."""
        return -(-self.tokens // ROWS)

    def grouped(self, x: Tensor) -> Tensor:
        """Return [tokens, numbers], or [runs, tokens, numbers]."""
        flat = x.reshape(-1, x.shape[-1])
        return flat if self.runs == 1 else flat.view(self.runs, -1, x.shape[-1])

    def beside(self, *reads: Tensor, lane: str | None = None) -> AbstractContextManager[None]:
        """Do what is inside beside what follows."""
        return nullcontext() if self.branch is None else self.branch.forked(*reads, lane=lane)

    def parts(self, count: int, size: int, blocks: int) -> Tensor:
        """Return room for what blocks of rows add to the gradients of some weights."""
        return torch.empty(count, self.runs, blocks, size, device=self.mask.device)

    def totals(self, parts: Tensor, *weights: Tensor) -> list[Tensor]:
        """Return the gradients of weights from what blocks of rows add to them."""
        out, (count, runs, blocks, size) = [self.home(weight) for weight in weights], parts.shape
        grid = (-(-size // 32), runs, count)
        _kernels().totals[grid](parts, *(out * 3)[:3], blocks, size, ROWS=64, COLUMNS=32)
        return out

    def matrix(self, weight: Tensor, back: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of a matrix."""
        out = self.home(weight)
        return (torch.mm if out.dim() == 2 else torch.bmm)(back.transpose(-1, -2), x, out=out)


def aligned(x: Tensor) -> Tensor:
    """Return a tensor that lies in one piece and begins where kernels take it to begin, moved if it must be.

    Another beginning would take another kernel, which cannot be compiled while a step is captured.
    """
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def padded(size: int, *, rows: int = 1, warp: int = 512) -> dict[str, int]:
    """Return what kernels that do a row at a time, or several, are compiled for.

    That is the size of a row, a power of two that it fits into, how many rows if several, and how many warps: each is
    to have about so many numbers.
    """
    room = 1 << (size - 1).bit_length()
    several = {} if rows == 1 else {"ROWS": rows}
    return {"N": size, "PAD": room, **several, "num_warps": min(16, max(1, rows * room // warp))}


def _kernels() -> Any:
    """Return the module of kernels, for which there is Triton only where there is a GPU."""
    from calmix.kernels import layers

    return layers
