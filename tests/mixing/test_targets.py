"""Label distributions: smoothed, mixed, and the cross-entropy to them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from calmix.errors import InputError
from calmix.mixing.targets import cross_entropy, mix, smooth

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-3.0, 4.0, 1.0], [0.1, 0.2, 0.3]])
SOFT = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]])
LABELS = torch.tensor([0, 2, 1, 1])
HARD = functional.one_hot(LABELS, 3).float()


def test_a_smoothed_label_keeps_one_minus_sigma_and_shares_the_rest_among_the_others() -> None:
    expected = torch.tensor([[0.7, 0.15, 0.15], [0.15, 0.15, 0.7], [0.15, 0.7, 0.15], [0.15, 0.7, 0.15]])
    torch.testing.assert_close(smooth(HARD, 0.3), expected)


def test_smoothing_a_distribution_is_smoothing_each_of_its_labels() -> None:
    each = smooth(torch.eye(3), 0.2)
    torch.testing.assert_close(smooth(SOFT, 0.2), SOFT @ each)


@given(sigma=st.floats(0, 1), classes=st.integers(2, 30))
def test_a_smoothed_label_is_a_distribution(sigma: float, classes: int) -> None:
    smoothed = smooth(torch.eye(classes, dtype=torch.float64), sigma)
    assert (smoothed >= 0).all()
    torch.testing.assert_close(smoothed.sum(-1), torch.ones(classes, dtype=torch.float64))


@pytest.mark.parametrize("amount", [2.0, -0.1, float("nan")])
def test_an_amount_that_leaves_no_distribution_is_refused(amount: float) -> None:
    with pytest.raises(InputError, match=r"^amount must be between 0 and 1, not "):
        smooth(torch.eye(3), amount)


def test_smoothing_differs_from_torchs_by_what_the_gold_class_gets() -> None:
    # torch spreads σ over all K classes: its σ is ours times K/(K − 1).
    ours = cross_entropy(LOGITS, smooth(HARD, 0.2))
    torchs = functional.cross_entropy(LOGITS, LABELS, label_smoothing=0.3, reduction="none")
    torch.testing.assert_close(ours, torchs)


def test_no_smoothing_and_a_single_class_change_nothing() -> None:
    assert torch.equal(smooth(SOFT, 0.0), SOFT)
    assert torch.equal(smooth(torch.ones(2, 1), 0.3), torch.ones(2, 1))


def test_cross_entropy_is_torchs_for_labels_and_for_distributions() -> None:
    torch.testing.assert_close(cross_entropy(LOGITS, HARD), functional.cross_entropy(LOGITS, LABELS, reduction="none"))
    torch.testing.assert_close(cross_entropy(LOGITS, SOFT), functional.cross_entropy(LOGITS, SOFT, reduction="none"))


@pytest.mark.parametrize("targets", [HARD, SOFT])
def test_class_weights_are_torchs(targets: torch.Tensor) -> None:
    weights = torch.tensor([0.5, 2.0, 1.5])
    expected = functional.cross_entropy(LOGITS, targets, weight=weights, reduction="none")
    torch.testing.assert_close(cross_entropy(LOGITS, targets, weights), expected)


def test_mixing_takes_lambda_of_the_row_and_the_rest_of_its_partner() -> None:
    rows = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    mixed = mix(rows, torch.tensor([1, 2, 2]), torch.tensor([0.75, 0.5, 0.1]))
    torch.testing.assert_close(mixed, torch.tensor([[3.25, 6.5], [55.0, 110.0], [100.0, 200.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4)])
def test_lambda_1_changes_no_bit_and_no_type(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    mixed = mix(rows, torch.tensor([2, 0, 1]), torch.ones(3))
    assert mixed.dtype == dtype
    assert torch.equal(mixed, rows)
