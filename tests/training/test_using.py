"""What a forward tells the parts of an encoder, and the sums that all of them need."""

from collections import Counter

import pytest
import torch

from calmix.training.using import Use, padded

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def use(runs: int, texts: int, width: int) -> Use:
    mask = torch.ones(runs * texts, width, dtype=torch.long, device=DEVICE)
    return Use(runs, mask, torch.zeros(1, dtype=torch.long, device=DEVICE), None, Counter(), torch.empty_like)


def test_rows_are_counted_by_run() -> None:
    told = use(runs=3, texts=4, width=5)
    assert (told.texts, told.tokens, told.width) == (4, 20, 5)
    assert told.grouped(torch.zeros(12, 5, 7)).shape == (3, 20, 7)
    assert use(runs=1, texts=4, width=5).grouped(torch.zeros(4, 5, 7)).shape == (20, 7)


@pytest.mark.parametrize(("texts", "each"), [(1, 2), (128, 2), (129, 4), (512, 4), (513, 8)])
def test_programs_do_more_rows_where_there_are_more(texts: int, each: int) -> None:
    told = use(runs=1, texts=texts, width=16)
    assert told.each == each
    assert (told.blocks - 1) * each < told.tokens <= told.blocks * each


@pytest.mark.parametrize(("size", "room", "warps"), [(384, 512, 1), (512, 512, 1), (768, 1024, 2), (3, 4, 1)])
def test_a_row_has_a_power_of_two_of_room(size: int, room: int, warps: int) -> None:
    assert padded(size) == {"N": size, "PAD": room, "num_warps": warps}


@pytest.mark.parametrize("runs", [1, 2])
def test_gradients_of_matrices_are_sums_over_the_rows_of_each_run(runs: int) -> None:
    torch.manual_seed(0)
    back, x = torch.randn(runs, 10, 3, device=DEVICE), torch.randn(runs, 10, 4, device=DEVICE)
    if runs == 1:
        back, x = back[0], x[0]
    weight = torch.empty(*back.shape[:-2], 3, 4, device=DEVICE)
    found = use(runs, 2, 5).matrix(weight, back, x)
    torch.testing.assert_close(found, torch.einsum("...to,...ti->...oi", back, x), rtol=1e-3, atol=1e-3)
