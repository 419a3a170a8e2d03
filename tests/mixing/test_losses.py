"""The losses of a batch's rows, clean and mixed, by hand; that kernels give the same is in `test_fused.py`."""

import math
from typing import Any

import pytest
import torch

from calmix.kernels import trying
from calmix.mixing import fused
from calmix.mixing.losses import Mixes, row_losses, step_losses
from calmix.mixing.targets import cross_entropy, smooth

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 3, generator=GENERATOR)
TARGETS = torch.eye(3)[[0, 2, 1, 1, 0]]
PARTNER = torch.tensor([[1, 0, 3, 3, 0], [4, 4, 4, 0, 1]])
OWN = torch.rand(2, 5, generator=GENERATOR)
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 1.5])


def by_hand(which: int, smoothing: float = 0.0, class_weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the cross-entropy of each row mixed with one of its partners."""
    lam, partner, targets = OWN[which][:, None], PARTNER[which], smooth(TARGETS, smoothing)
    logits = lam * LOGITS + (1 - lam) * LOGITS[partner]
    return cross_entropy(logits, lam * targets + (1 - lam) * targets[partner], class_weights)


def test_without_mixes_it_is_cross_entropy_to_smoothed_labels() -> None:
    found = row_losses(LOGITS, TARGETS, smoothing=0.1, class_weights=CLASS_WEIGHTS)
    assert torch.equal(found, cross_entropy(LOGITS, smooth(TARGETS, 0.1), CLASS_WEIGHTS))
    assert torch.equal(row_losses(LOGITS, TARGETS, clean=0), torch.zeros(5))


def test_one_mix_counts_for_each_row_what_it_is_told() -> None:
    weight = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.1])
    found = row_losses(LOGITS, TARGETS, Mixes(PARTNER[0], OWN[0], weight, 0.2), clean=0.7, class_weights=CLASS_WEIGHTS)
    plain = cross_entropy(LOGITS, TARGETS, CLASS_WEIGHTS)
    torch.testing.assert_close(found, 0.7 * plain + weight * by_hand(0, 0.2, CLASS_WEIGHTS))


def test_of_several_mixes_each_counts_what_it_is_told() -> None:
    mixes = Mixes(PARTNER, OWN, torch.tensor([0.3, 0.6]), 0.2)
    found = row_losses(LOGITS, TARGETS, mixes, clean=0.8, smoothing=0.1)
    plain = cross_entropy(LOGITS, smooth(TARGETS, 0.1))
    torch.testing.assert_close(found, 0.8 * plain + 0.3 * by_hand(0, 0.2) + 0.6 * by_hand(1, 0.2))


def test_mixes_without_weights_count_once_and_the_clean_rows_can_be_left_out() -> None:
    torch.testing.assert_close(row_losses(LOGITS, TARGETS, Mixes(PARTNER[1], OWN[1]), clean=0), by_hand(1))
    torch.testing.assert_close(row_losses(LOGITS, TARGETS, Mixes(PARTNER, OWN), clean=0), by_hand(0) + by_hand(1))


def test_clean_rows_that_are_left_out_are_not_looked_at() -> None:
    logits = LOGITS.clone()
    logits[0, 0] = torch.nan
    partner, own = torch.tensor([1, 1, 2, 3, 4]), torch.ones(5)
    found = row_losses(logits, TARGETS, Mixes(partner, own), clean=0)
    assert found.isnan().tolist() == [True, False, False, False, False]


def test_a_step_lends_its_logits_targets_and_class_weights(make_step: Any) -> None:
    step = make_step()
    step.class_weights = CLASS_WEIGHTS
    found = step_losses(step, Mixes(PARTNER[0], OWN[0]), clean=0.5)
    mixes = Mixes(PARTNER[0], OWN[0])
    assert torch.equal(found, row_losses(step.logits, step.targets, mixes, clean=0.5, class_weights=CLASS_WEIGHTS))


class OnGPU:
    """A tensor that says it is on a GPU."""

    is_cuda, requires_grad, device = True, False, torch.device("cuda:0")

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, number: int = 0) -> None:
        self.shape, self.dtype, self.number = shape, dtype, number

    def __len__(self) -> int:
        return self.shape[0]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def get_device(self) -> int:
        return self.number


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return for how many columns kernels have been tried, on a GPU that agrees to everything."""
    columns: list[int] = []
    monkeypatch.setattr(trying, "_found", {})
    monkeypatch.setattr(trying, "tried", lambda agrees, _device: columns.append(agrees.args[0]) or True)
    monkeypatch.setattr(trying, "capturing", lambda: False)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    return columns


@pytest.mark.parametrize(
    ("like", "runs", "columns"),
    [
        ({"shape": (32, 3)}, 1, [8]),
        ({"shape": (320, 9)}, 10, [32]),
        ({"shape": (256, 128)}, 1, [128]),
        ({"shape": (32, 129)}, 1, []),
        ({"shape": (257, 128)}, 1, []),
        ({"shape": (514, 128)}, 2, []),
        ({"shape": (32, 3), "dtype": torch.float64}, 1, []),
        ({"shape": (32, 3), "number": 1}, 1, []),
        ({"shape": (32, 4, 3)}, 1, []),
        ({"shape": (0, 3)}, 1, []),
    ],
)
def test_kernels_are_tried_where_they_serve_alone(
    like: dict[str, Any], runs: int, columns: list[int], tried: list[int]
) -> None:
    tensor: Any = OnGPU(*like.pop("shape"), **like)
    for _ in range(2):
        assert fused.serves_losses(tensor, tensor, runs) is bool(columns)
    assert tried == columns


def test_kernels_are_for_gpus_and_matching_targets(tried: list[int]) -> None:
    logits: Any = OnGPU(5, 3)
    other: Any = OnGPU(5, 1)
    assert not fused.serves_losses(LOGITS, TARGETS)
    assert not fused.serves_partners(LOGITS, TARGETS)
    assert not fused.serves_losses(logits, other)
    assert not fused.serves_partners(logits, logits, 1, OnGPU(15, 8))  # type: ignore[arg-type]
    assert not fused.serves_partners(logits, logits, 1, OnGPU(5, 2**17))  # type: ignore[arg-type]
    assert tried == []
    assert fused.serves_partners(logits, logits, 1, OnGPU(5, 8))  # type: ignore[arg-type]


def test_kernels_that_were_not_tried_before_a_capture_are_not_used_in_it(
    tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Any = OnGPU(32, 3)
    new: Any = OnGPU(32, 30)
    assert fused.serves_losses(known, known)
    monkeypatch.setattr(trying, "capturing", lambda: True)
    assert fused.serves_losses(known, known)
    assert not fused.serves_losses(new, new)
    monkeypatch.setattr(trying, "capturing", lambda: False)
    assert fused.serves_losses(new, new)
    assert tried == [8, 32]
