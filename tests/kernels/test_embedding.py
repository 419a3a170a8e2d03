"""The kernels of embeddings; that they do what torch does is tested where they are called."""

import pytest
import torch
from kernel_device import DEVICE


@pytest.mark.parametrize("times", [1, 15, 16, 17, 40])
def test_gradients_of_a_word_are_collected_however_often_it_occurs(times: int) -> None:
    from calmix.kernels import embedding

    torch.manual_seed(0)
    words, padding, size = 9, 2, 24
    ids = torch.tensor([4] * times + [2, 8, 0, 8] + [words + 4, words + 2])[torch.randperm(times + 6)].to(DEVICE)
    back = torch.randn(len(ids), size, device=DEVICE)
    found, order = torch.sort(ids, stable=True)
    out = torch.zeros(2 * words, size, device=DEVICE)
    embedding.collect[(len(ids),)](back, found, order, out, len(ids), words, padding, N=size, PAD=32, ROWS=16)
    wanted = torch.zeros_like(out).index_add_(0, ids, back)
    wanted[[padding, words + padding]] = 0  # which is not learnt
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
