"""Many classes on a CPU, in blocks that threads share out: the same answers as a loop over rows."""

import numpy as np
import pytest
import torch

from calmix.calibration import wide
from calmix.calibration.confidence import stream
from calmix.errors import InputError
from calmix.metrics import ece


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows of eleven classes, whatever the size of the input, handed over nine at a time."""
    monkeypatch.setattr(wide, "_BLOCK", 33)
    monkeypatch.setattr(wide, "_SPAN", 9)
    monkeypatch.setattr(wide, "_WORTH", 0)


def made(rows: int, kind: str, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    scores = rng.integers(0, 3, (rows, 11)) if kind == "tied" else rng.normal(size=(rows, 11)) * 4
    probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    if kind == "one-hot":
        probs = np.eye(11)[rng.integers(0, 11, rows)]
    if kind == "negative zeros":
        probs = np.where(np.eye(11)[rng.integers(0, 11, rows)] > 0, 1.0, -0.0)
    labels = np.where(rng.random(rows) < 0.6, probs.argmax(1), rng.integers(0, 11, rows))
    return probs.astype(dtype), labels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["random", "tied", "one-hot", "negative zeros"])
@pytest.mark.parametrize("rows", [1, 3, 8, 50])
def test_each_row_has_its_largest_and_whether_its_first_place_is_the_label(rows: int, kind: str, dtype: type) -> None:
    probs, labels = made(rows, kind, dtype)
    assert wide.is_wide(torch.from_numpy(probs))
    parts = list(stream(probs, labels, None))
    assert len(parts) == -(-rows // 9)
    expected = [(max(row), row.tolist().index(max(row)) == label) for row, label in zip(probs, labels, strict=True)]
    found = zip(torch.cat([c for c, _ in parts]).tolist(), torch.cat([h for _, h in parts]).tolist(), strict=True)
    assert list(found) == expected


def test_the_number_of_threads_changes_nothing() -> None:
    probs, labels = made(100, "tied")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(ece(probs, labels))
    finally:
        torch.set_num_threads(before)
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("row", "values", "message"),
    [
        (0, {2: float("nan")}, r"probs\[0\] holds NaN"),
        (17, {2: -0.25, 3: 0.25}, r"probs\[17\] holds -0.25, a negative number"),
        (31, {4: 0.5}, r"probs\[31\] sums to"),
        (40, {5: float("inf")}, r"probs\[40\] sums to inf"),
        (49, {5: -float("inf")}, r"probs\[49\] holds -inf, a negative number"),
    ],
)
def test_the_first_bad_row_is_named(row: int, values: dict[int, float], message: str) -> None:
    probs, labels = np.full((50, 11), 1 / 11, np.float32), np.zeros(50, np.int64)
    for bad in (row, 49):
        probs[bad, :6] = np.array([1, 0, 0, 0, 0, 0])
        probs[bad, 6:] = 0
        for place, value in values.items():
            probs[bad, place] = value
    with pytest.raises(InputError, match=message):
        ece(probs, labels)


@pytest.mark.parametrize("label", [-1, 11])
def test_a_label_that_is_no_class_is_named(label: int) -> None:
    probs, labels = made(50, "random")
    labels[23] = label
    with pytest.raises(InputError, match=rf"labels\[23\] is {label}"):
        ece(probs, labels)


def test_few_classes_small_input_columns_and_half_precision_go_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.from_numpy(made(50, "random")[0])
    assert wide.is_wide(probs)
    assert not wide.is_wide(probs[:, :8])
    assert not wide.is_wide(probs.t().contiguous().t())
    assert not wide.is_wide(probs.half())
    monkeypatch.setattr(wide, "_WORTH", 10_000)
    assert not wide.is_wide(probs)
