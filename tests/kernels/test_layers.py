"""The kernels between a layer's products; that they do what torch does is tested where they are called."""

from collections import Counter

import pytest
import torch
from kernel_device import DEVICE

from calmix.training.using import Use


def test_draws_are_even_and_each_site_has_its_own() -> None:
    from calmix.kernels import layers as kernels

    count, drop = 4096, 0.25
    ones, none, one = torch.ones(1, count), torch.zeros(1, count), torch.ones(1, count)
    seeds = torch.tensor([5, 6])
    found = []
    for site in (0, 0, 1):
        y, z, mean, scale = torch.empty(1, count), torch.empty(1, count), torch.empty(1), torch.empty(1)
        given = [t.to(DEVICE) for t in (ones, none, none, one, one, seeds, y, z, mean, scale)]
        kernels.add_norm[1, 1](*given, 1, site, drop, 1e-5, N=count, PAD=count)
        found.append(given[7].cpu())
    assert found[0].unique().tolist() == pytest.approx([0, 1 / (1 - drop)])
    assert float((found[0] > 0).float().mean()) == pytest.approx(1 - drop, abs=0.03)
    assert torch.equal(found[0], found[1])
    both = float(((found[0] > 0) & (found[2] > 0)).float().mean())
    assert both == pytest.approx((1 - drop) ** 2, abs=0.04)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("blocks", [1, 70])
def test_totals_add_up_what_blocks_of_rows_found(count: int, blocks: int) -> None:
    mask, seeds = torch.ones(4, 5, device=DEVICE), torch.zeros(1, device=DEVICE)
    use = Use(2, mask, seeds, None, Counter(), torch.empty_like)
    parts = use.parts(count, 40, blocks).normal_()
    weights = [torch.empty(2, 40, device=DEVICE) for _ in range(count)]
    found = use.totals(parts, *weights)
    assert len(found) == count
    for one, wanted in zip(found, parts.sum(2), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)
