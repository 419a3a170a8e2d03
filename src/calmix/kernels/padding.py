"""The kernel that cuts a batch out of packed sequences: what it writes is said in `models.encoding`, which calls it."""

import triton
import triton.language as tl

__all__ = ["pad"]

# One compiled kernel for all batches, wherever their rows begin: inside a capture none can be loaded.
_names = ["rows", "first", "starts", "lengths", "ids", "types", "input_ids", "attention_mask", "token_type_ids"]


@triton.jit(do_not_specialize=[*_names, "pad_id", "width", "choices"])
def pad(
    rows,
    first,
    starts,
    lengths,
    ids,
    types,
    input_ids,
    attention_mask,
    token_type_ids,
    pad_id,
    width,
    choices,
    BLOCK: tl.constexpr,
):
    """Write some places of one sequence: its tokens, where they are and, unless there are none, their types."""
    sequence = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    packed = tl.load(first + tl.load(rows + sequence // choices)) + sequence % choices
    inside = places < width
    text = inside & (places < tl.load(lengths + packed))
    begin, out = tl.load(starts + packed), sequence * width + places
    tl.store(input_ids + out, tl.load(ids + begin + places, mask=text, other=pad_id).to(tl.int64), mask=inside)
    tl.store(attention_mask + out, text.to(tl.int64), mask=inside)
    if types is not None:
        tl.store(token_type_ids + out, tl.load(types + begin + places, mask=text, other=0).to(tl.int64), mask=inside)
