"""The kernel that marks the label of each row of a batch among all classes."""

import triton
import triton.language as tl

__all__ = ["mark"]


# One compiled kernel for all batches, wherever their rows begin: inside a capture none can be loaded.
@triton.jit(do_not_specialize=["labels", "rows", "out", "size", "classes"])
def mark(labels, rows, out, size, classes, BLOCK: tl.constexpr):
    """Write 1 at the label of each row, and 0 at all other classes."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    label = tl.load(labels + tl.load(rows + places // classes, mask=inside, other=0), mask=inside, other=-1)
    tl.store(out + places, (label == places % classes).to(tl.float32), mask=inside)
