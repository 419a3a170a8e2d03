"""The kernels of attention, in texts of all lengths that they serve."""

import pytest
import torch
from kernel_device import DEVICE, DTYPE, ON_GPU
from torch.nn.functional import scaled_dot_product_attention

NEAR = {"rtol": 0.05, "atol": 0.05} if ON_GPU else {"rtol": 1e-4, "atol": 1e-5}
RUNS, TEXTS, HEADS, SIZE = 2, 2, 2, 16


@pytest.mark.parametrize("width", [1, 16, 24, 33, 128])
def test_values_and_gradients_are_those_of_torch(width: int) -> None:
    from calmix.kernels import attending

    torch.manual_seed(0)
    every = HEADS * SIZE
    numbers = torch.randn(RUNS * TEXTS * width, 3 * every).to(DEVICE, DTYPE)
    bias = torch.randn(RUNS, 3 * every).to(DEVICE, DTYPE)
    lengths = torch.tensor([width, max(1, width // 2), 1, max(1, width - 3)], device=DEVICE)
    mask = (torch.arange(width, device=DEVICE) < lengths[:, None]).long()
    upstream = torch.randn(RUNS * TEXTS * width, every).to(DEVICE, DTYPE)
    seeds = torch.zeros(1, dtype=torch.long, device=DEVICE)
    length = max(16, 1 << (width - 1).bit_length())
    told = (width, TEXTS, 0, SIZE**-0.5, 0.0)
    sizes = {"HEADS": HEADS, "SIZE": SIZE, "LENGTH": length, "num_warps": length // 16}
    out, back = torch.empty_like(upstream), torch.empty_like(numbers)
    parts = torch.empty(RUNS * TEXTS, 3 * every, device=DEVICE)
    attending.attend[RUNS * TEXTS, HEADS](numbers, bias, mask, seeds, out, *told, **sizes)
    attending.attend_back[RUNS * TEXTS, HEADS](upstream, numbers, bias, mask, seeds, back, parts, *told, **sizes)

    own, biases = numbers.float().requires_grad_(), bias.float().requires_grad_()
    added = (own.view(RUNS, -1, 3 * every) + biases[:, None]).view(-1, width, 3, HEADS, SIZE)
    query, key, value = added.permute(2, 0, 3, 1, 4)
    wanted = scaled_dot_product_attention(query, key, value, attn_mask=mask.bool()[:, None, None])
    wanted = wanted.transpose(1, 2).reshape(upstream.shape)
    wanted.backward(upstream.float())
    torch.testing.assert_close(out.float(), wanted, **NEAR)
    torch.testing.assert_close(back.float(), own.grad, **NEAR)
    torch.testing.assert_close(parts.view(RUNS, TEXTS, -1).sum(1), biases.grad, **{n: 8 * v for n, v in NEAR.items()})
