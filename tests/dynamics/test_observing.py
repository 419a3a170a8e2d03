import math

import pytest
import torch

from calmix.dynamics.observing import observe

INF = math.inf


def test_by_hand():
    seen = observe(torch.tensor([[2.0, 0.5, 1.0]]), torch.tensor([0]))
    assert seen.margin.item() == 1.0
    assert seen.gold.item() == pytest.approx(math.exp(2) / (math.exp(2) + math.exp(0.5) + math.exp(1)))
    assert seen.right.item() == 1
    assert seen.loss.item() == pytest.approx(-math.log(seen.gold.item()))
    assert seen.rival.item() == 2
    assert seen.rival_probability.item() == pytest.approx(seen.gold.item() / math.e)


def test_the_first_of_equal_logits_is_the_prediction():
    seen = observe(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert seen.right.tolist() == [1, 0]
    assert seen.margin.tolist() == [0.0, 0.0]


def test_a_padded_choice_is_never_the_rival():
    seen = observe(torch.tensor([[1.0, 0.0, -INF], [0.0, 1.0, -INF]]), torch.tensor([0, 0]))
    assert seen.valid.all()
    assert seen.margin.tolist() == [1.0, -1.0]
    assert seen.rival.tolist() == [1, 1]


@pytest.mark.parametrize("logits", [[[3.0]], [[3.0, -INF]]])
def test_without_another_class_there_is_no_margin_and_no_rival(logits):
    seen = observe(torch.tensor(logits), torch.tensor([0]))
    assert seen.valid.all()
    assert seen.margin.isnan().all()
    assert (seen.gold.item(), seen.right.item(), seen.rival.item(), seen.rival_probability.item()) == (1, 1, -1, 0)


@pytest.mark.parametrize(
    ("logits", "label"),
    [([0.0, 1.0], -100), ([math.nan, 1.0], 1), ([INF, 1.0], 1), ([0.0, INF], 1), ([-INF, 1.0], 0)],
)
def test_rows_without_a_label_or_finite_numbers_are_not_valid(logits, label):
    assert not observe(torch.tensor([logits]), torch.tensor([label])).valid.any()


def test_half_precision_logits_are_read_as_they_are():
    logits = torch.tensor([[7.0, 0.0]], dtype=torch.bfloat16)
    assert observe(logits, torch.tensor([1])).gold.item() == pytest.approx(1 / (1 + math.exp(7)), rel=1e-12)
