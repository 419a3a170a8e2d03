"""The mean of predictions is one of probabilities."""

import numpy as np
import torch

from calmix.models import columns_for, mean_logits


def test_the_mean_of_one_is_untouched_and_that_of_sure_ones_is_finite() -> None:
    logits = torch.tensor([[1e4, 0.0], [3.0, -5.0]])
    assert torch.equal(mean_logits([logits]), logits)
    mean = mean_logits([logits, logits])
    assert mean.isfinite().all()
    torch.testing.assert_close(mean.exp(), logits.softmax(1))


def test_several_are_averaged_as_probabilities_whatever_their_scale() -> None:
    each = [torch.randn(6, 4, generator=torch.Generator().manual_seed(k)) * 5**k for k in range(3)]
    expected = torch.stack([logits.double().softmax(1) for logits in each]).mean(0)
    torch.testing.assert_close(mean_logits(each).double().exp(), expected, atol=1e-6, rtol=1e-5)
    assert mean_logits(each).dtype == torch.float32
    exact = mean_logits([logits.double() for logits in each])
    torch.testing.assert_close(exact.exp(), expected)


def test_a_choice_that_is_not_there_stays_impossible() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]])
    mean = mean_logits([logits, logits + 3])
    assert mean[0, 2] == -torch.inf
    torch.testing.assert_close(mean.softmax(1), logits.softmax(1))


def test_columns_are_found_by_name_or_not_at_all() -> None:
    np.testing.assert_array_equal(columns_for(("a", "b", "c"), ("c", "a", "b")), [1, 2, 0])
    assert columns_for(("a", "b"), ("a", "x")) is None
    assert columns_for((), ()) is not None
