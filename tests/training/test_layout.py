"""Copies of weights lie in one stretch of memory, and gradients as they do."""

import pytest
import torch

from calmix.training.layout import joined, lay_out, like, stretch_for

ASKING = [("query.weight", "key.weight"), ("query.bias", "key.bias")]


def weights(*runs: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"query.weight": (3, 5), "other": (7,), "key.weight": (3, 5), "query.bias": (3,), "key.bias": (3,)}
    return {name: torch.randn(*runs, *shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("runs", [(), (4,)], ids=str)
@pytest.mark.parametrize("together", [(), ASKING], ids=["alone", "together"])
def test_copies_have_the_numbers_of_the_weights_and_share_one_memory(
    runs: tuple[int, ...], together: list[tuple[str, ...]]
) -> None:
    begun = weights(*runs)
    copies = lay_out(begun, torch.float64, together=together)
    assert list(copies) == list(begun)
    assert len({copy.untyped_storage().data_ptr() for copy in copies.values()}) == 1
    for name, copy in copies.items():
        assert torch.equal(copy, begun[name].double())
    for copy in copies.values():
        copy.fill_(7)
    assert {name: float(copy.sum()) for name, copy in copies.items()} == {
        name: 7.0 * weight.numel() for name, weight in begun.items()
    }


@pytest.mark.parametrize("runs", [(), (4,)], ids=str)
def test_those_that_lie_together_are_one_without_being_copied(runs: tuple[int, ...]) -> None:
    begun = weights(*runs)
    copies = lay_out(begun, torch.float32, together=ASKING)
    for names, axis in zip(ASKING, (-2, -1), strict=True):
        whole = joined([copies[name] for name in names], axis)
        assert torch.equal(whole, torch.cat([begun[name] for name in names], axis))
        assert whole.is_contiguous()
        assert whole.data_ptr() == copies[names[0]].data_ptr()


def test_every_weight_begins_where_many_numbers_can_be_read_at_a_time() -> None:
    copies = lay_out(weights(), torch.bfloat16)
    assert all(copy.storage_offset() % 16 == 0 for copy in copies.values())


def test_gradients_lie_as_the_copies_do() -> None:
    copies = lay_out(weights(4), torch.float32, together=ASKING)
    stretch = stretch_for(copies)
    for place, copy in enumerate(copies.values(), 1):
        home = like(stretch, copy)
        assert home.shape == copy.shape
        assert home.stride() == copy.stride()
        assert not home.any()  # nobody else's
        home.fill_(place)


def test_weights_with_channels_last_keep_their_order() -> None:
    images = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    copy = lay_out({"weight": images}, torch.float32)["weight"]
    assert copy.stride() == images.stride()
    assert torch.equal(copy, images)
