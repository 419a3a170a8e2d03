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


@pytest.mark.parametrize("apart", [1, 384, 2**16])
def test_draws_are_independent_of_those_of_other_places_and_seeds(apart: int) -> None:
    from calmix.kernels import layers as kernels

    size, drop = 512, 0.5
    rows = 2 * 2**16 // size
    drawn = {}
    for name, seed in (("one", 5), ("next", 6), ("far", 5 + 2**62)):
        ones, seeds = torch.ones(rows, size, device=DEVICE), torch.tensor([seed], device=DEVICE)
        nothing, y, z = torch.zeros_like(ones), torch.empty_like(ones), torch.empty_like(ones)
        about = torch.empty(2, rows, device=DEVICE)
        given = (ones, nothing, nothing, ones, ones, seeds, y, z, about[0], about[1])
        kernels.add_norm[rows, 1](*given, rows, 0, drop, 1e-5, N=size, PAD=size)
        drawn[name] = (z.flatten() > 0).float().cpu() - 0.5
    one, count = drawn["one"], rows * size // 2
    near = 5 * 0.25 / count**0.5  # five standard deviations
    assert abs(float((one[:count] * one[apart : apart + count]).mean())) < near
    for other in (drawn["next"], drawn["far"]):
        assert abs(float((one[:count] * other[:count]).mean())) < near
        assert abs(float((one[:count] * other[apart : apart + count]).mean())) < near


def test_gelu_is_torchs_wherever_it_is_asked_for() -> None:
    from calmix.kernels import layers as kernels

    x = torch.cat([torch.linspace(-12, 12, 4093), torch.tensor([0.0, 1e-20, -1e-20])]).to(DEVICE)
    bias, y = torch.zeros_like(x), torch.empty_like(x)
    sizes = {"N": len(x), "COLUMNS": 256, "ROWS": 4}
    kernels.gelu[1, 16, 1](x, bias, y, 1, **sizes)
    wanted = torch.nn.functional.gelu(x.double())
    torch.testing.assert_close(y.double(), wanted, rtol=1e-6, atol=1e-6)
    slope, parts = torch.empty_like(x), torch.empty_like(x)
    kernels.gelu_back[1, 16, 1](torch.ones_like(x), x, bias, slope, parts, 1, **sizes)
    twice = x.double().requires_grad_()
    torch.nn.functional.gelu(twice).sum().backward()
    torch.testing.assert_close(slope.double(), twice.grad, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(parts, slope)


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
