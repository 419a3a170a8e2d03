"""Seeds of steps."""

import torch

from calmix.training.seeding import seed_device, seed_for


def test_seeds_differ_with_every_number() -> None:
    seeds = {seed_for(a, b, c) for a in range(5) for b in range(20) for c in range(3)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_for(1, 2) == seed_for(1, 2)


def test_a_device_draws_what_it_would_draw_after_torch_has_seeded_all() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    drawn = []
    for seed in (lambda: torch.manual_seed(7), lambda: seed_device(7, device)):
        seed()
        drawn.append((torch.rand(3), torch.rand(3, device=device)))
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
