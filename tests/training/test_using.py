"""What a forward tells the parts of an encoder, and the sums that all of them need."""

from collections import Counter

import pytest
import torch

from calmix.training.using import ROWS, Use, aligned, padded

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def use(runs: int, texts: int, width: int) -> Use:
    mask = torch.ones(runs * texts, width, dtype=torch.long, device=DEVICE)
    return Use(runs, mask, torch.zeros(1, dtype=torch.long, device=DEVICE), None, Counter(), torch.empty_like)


def test_rows_are_counted_by_run() -> None:
    told = use(runs=3, texts=4, width=5)
    assert (told.texts, told.tokens, told.width) == (4, 20, 5)
    assert told.grouped(torch.zeros(12, 5, 7)).shape == (3, 20, 7)
    assert use(runs=1, texts=4, width=5).grouped(torch.zeros(4, 5, 7)).shape == (20, 7)


@pytest.mark.parametrize("texts", [1, 3, 4, 128])
def test_blocks_have_all_rows_of_a_run(texts: int) -> None:
    told = use(runs=2, texts=texts, width=3)
    assert (told.blocks - 1) * ROWS < told.tokens <= told.blocks * ROWS


@pytest.mark.parametrize("begin", [0, 1, 2, 4])
def test_tensors_are_moved_to_where_kernels_take_them_to_begin(begin: int) -> None:
    x = torch.arange(32, device=DEVICE)[begin : begin + 8].view(2, 4)
    found = aligned(x)
    assert found.data_ptr() % 16 == 0
    assert torch.equal(found, x)
    assert (found is x) == (begin % 2 == 0)
    assert torch.equal(aligned(x.T), x.T)


@pytest.mark.parametrize(("size", "room", "warps"), [(384, 512, 1), (512, 512, 1), (768, 1024, 2), (3, 4, 1)])
def test_a_row_has_a_power_of_two_of_room(size: int, room: int, warps: int) -> None:
    assert padded(size) == {"N": size, "PAD": room, "num_warps": warps}


@pytest.mark.parametrize(("size", "rows", "warps"), [(384, 4, 4), (768, 4, 8), (3, 4, 1), (4096, 16, 16)])
def test_several_rows_have_as_many_warps(size: int, rows: int, warps: int) -> None:
    assert padded(size, rows=rows) | {"ROWS": rows, "num_warps": warps} == padded(size, rows=rows)


@pytest.mark.parametrize("runs", [1, 2])
def test_gradients_of_matrices_are_sums_over_the_rows_of_each_run(runs: int) -> None:
    torch.manual_seed(0)
    back, x = torch.randn(runs, 10, 3, device=DEVICE), torch.randn(runs, 10, 4, device=DEVICE)
    if runs == 1:
        back, x = back[0], x[0]
    weight = torch.empty(*back.shape[:-2], 3, 4, device=DEVICE)
    found = use(runs, 2, 5).matrix(weight, back, x)
    torch.testing.assert_close(found, torch.einsum("...to,...ti->...oi", back, x), rtol=1e-3, atol=1e-3)
