import warnings

import numpy as np
import pytest
import torch

from calmix.calibration import checks
from calmix.errors import InputError
from calmix.metrics import (
    BinCounts,
    adaptive_ece,
    brier,
    brier_decomposition,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    nll,
    oe,
    reliability,
    smooth_ece,
    squared_ece,
)
from calmix.recalibration import Histogram, Isotonic, Temperature, VectorScaling

GOOD = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
LABELS = np.array([0, 1, 1])


@pytest.mark.parametrize("metric", [ece, nll, brier])
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([np.nan, 1.0], r"probs\[1\] holds NaN"),
        ([1.1, -0.1], r"probs\[1\] holds -0.1, a negative"),
        ([3.0, 2.0], r"probs\[1\] sums to 5, not 1"),
        ([np.inf, 0.0], r"probs\[1\] sums to inf"),
        ([0.0, 0.0], r"probs\[1\] sums to 0"),
    ],
)
def test_a_row_that_is_no_distribution_is_named(metric, row, says):
    probs = GOOD.copy()
    probs[1] = row
    for kind in (probs, probs.astype(np.float32), torch.tensor(probs)):
        with pytest.raises(InputError, match=says):
            metric(kind, LABELS)


@pytest.mark.parametrize("label", [-1, 2, -100])
def test_a_label_that_is_no_class_is_named(label):
    with pytest.raises(InputError, match=rf"labels\[2\] is {label}; labels must lie in 0 … 1"):
        ece(GOOD, np.array([0, 1, label]))


def test_the_row_is_counted_over_chunks(monkeypatch):
    monkeypatch.setattr(checks, "_CPU_CHUNK", 8)
    probs = np.full((100, 2), 0.5)
    probs[77] = 0.7
    with pytest.raises(InputError, match=r"probs\[77\]"):
        ece(probs, np.zeros(100, int))


@pytest.mark.parametrize(
    ("probs", "labels", "says"),
    [
        (np.zeros((0, 3)), np.zeros(0, int), "empty"),
        (GOOD[:, 0], LABELS, "shape"),
        (GOOD[:, :1], LABELS, "at least two classes"),
        (GOOD, LABELS[:2], "3 rows and labels has 2"),
        (GOOD, LABELS * 1.0, "integers"),
        (GOOD, LABELS[:, None], "integers"),
        (GOOD.round().astype(int), LABELS, "floating point"),
        (GOOD.astype(str), LABELS, "numbers"),
    ],
)
def test_shapes_and_kinds_are_checked(probs, labels, says):
    with pytest.raises(InputError, match=says):
        ece(probs, labels)


def test_rounding_is_not_an_error():
    assert ece(np.array([[1.0000001, 0.0]], np.float32), np.array([0])) == pytest.approx(0, abs=2e-7)
    half = torch.softmax(torch.randn(50, 100, generator=torch.Generator().manual_seed(0)), 1).half()
    assert 0 <= ece(half, torch.zeros(50, dtype=torch.int64)) <= 1


def test_in_half_precision_the_bad_row_is_named_and_not_one_that_is_rounded():
    probs = torch.full((6, 3), 0.33, dtype=torch.bfloat16)  # sums to 0.990, which bfloat16 may
    assert ece(probs, torch.zeros(6, dtype=torch.int64)) > 0
    probs[4, 0] = torch.nan
    with pytest.raises(InputError, match=r"probs\[4\] holds NaN"):
        ece(probs, torch.zeros(6, dtype=torch.int64))


@pytest.mark.parametrize("classes", [3, 12])
def test_a_row_within_the_margin_in_float64_is_no_error(classes):
    rng = np.random.default_rng(0)
    for side in (-1, 1):
        for _ in range(200):
            row = rng.dirichlet(np.ones(classes)) * (1 + side * 1e-3 * (1 + 1e-5 * rng.normal()))
            row = row.astype(np.float32)[None]
            # In float32 a sum this close to the margin may come out on either side of it.
            if abs(row.astype(np.float64).sum() - 1) <= 1e-3:
                ece(row, np.zeros(1, int))


@pytest.mark.parametrize(
    "view",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, 0)[::2],
        lambda a: a[::-1][::-1],
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: a.astype(">f8"),
        lambda a: a.astype(np.longdouble),
        lambda a: a.tolist(),
        lambda a: torch.tensor(a, requires_grad=True),
    ],
)
def test_any_layout_gives_the_same_number(view):
    assert ece(view(GOOD), LABELS) == pytest.approx(ece(GOOD, LABELS), abs=1e-15)


def test_a_read_only_array_is_neither_copied_nor_complained_about():
    probs = GOOD.copy()
    probs.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checks.tensor(probs, "probs").data_ptr() == probs.ctypes.data


def test_chunking_does_not_change_a_metric(monkeypatch, draw):
    _, probs, labels = draw(0, 500)
    whole = ece(probs, labels), nll(probs, labels), brier(probs, labels)
    monkeypatch.setattr(checks, "_CPU_CHUNK", 20)
    assert (ece(probs, labels), nll(probs, labels), brier(probs, labels)) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(
    ("row", "label", "says"),
    [
        ([np.nan, 1.0], 0, r"logits\[1\]"),
        ([np.inf, 1.0], 0, r"logits\[1\]"),
        ([-np.inf, -np.inf], 0, r"logits\[1\]"),
        ([-np.inf, 1.0], 0, r"labels\[1\] points at a choice whose logit is -inf"),
        ([0.0, 1.0], 7, r"labels\[1\] is 7"),
    ],
)
def test_bad_logits_are_named(row, label, says):
    with pytest.raises(InputError, match=says):
        Temperature.fit(np.array([[0.0, 1.0], row]), np.array([0, label]))


def test_soft_targets_that_point_nowhere_are_named():
    with pytest.raises(InputError, match=r"labels\[0\] sums to 2"):
        nll(GOOD, np.ones((3, 2)))
    with pytest.raises(InputError, match=r"labels\[0\] points at a choice"):
        Temperature.fit(np.array([[-np.inf, 0.0, 1.0]]), np.full((1, 3), 1 / 3))


KINDS = [Temperature, VectorScaling, Isotonic, Histogram]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_probabilities_are_not_fitted_as_logits(kind, dtype):
    with pytest.raises(InputError, match=r"^logits holds probabilities .*; for probabilities p, pass np.log\(p.clip"):
        kind.fit(GOOD.astype(dtype), LABELS)
    kind.fit(np.log(GOOD.astype(dtype)), LABELS)
    kind.fit(np.array([[0.5, 0.5], [0.9, 0.2]]), LABELS[:2])  # one row that is none is enough


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("digits", [2, 3])
def test_probabilities_that_were_rounded_are_none_either(kind, digits):
    probs = np.random.default_rng(0).dirichlet(np.ones(4), 200).round(digits)
    assert abs(probs.sum(1) - 1).max() > 1e-3 / 2
    with pytest.raises(InputError, match=r"^logits holds probabilities"):
        kind.fit(probs, np.arange(200) % 4)


def test_the_logarithm_of_a_probability_of_0_is_refused_with_the_same_remedy():
    probs = np.array([[0.0, 1.0], [0.4, 0.6]])
    with np.errstate(divide="ignore"), pytest.raises(InputError, match=r"-inf; for probabilities p, pass np.log\(p.cl"):
        Temperature.fit(np.log(probs), np.array([0, 1]))
    assert Temperature.fit(np.log(probs.clip(1e-12)), np.array([0, 1])).temperature > 1


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fitted_without_labels(kind):
    with pytest.raises(InputError, match=r"^labels is None; it must hold numbers$"):
        kind.fit(np.log(GOOD), None)
    with pytest.raises(InputError, match=r"^logits is None; it must hold numbers$"):
        kind.fit(None, LABELS)


def counted(probs, labels, *, positive_class):
    return BinCounts.empty(positive_class=positive_class).update(probs, labels)


OF_A_CLASS = [
    ece,
    mce,
    oe,
    reliability,
    adaptive_ece,
    squared_ece,
    debiased_ece,
    smooth_ece,
    brier,
    brier_decomposition,
    BinCounts.of,
    counted,
]


@pytest.mark.parametrize("measure", OF_A_CLASS)
@pytest.mark.parametrize("given", [True, False, np.True_, 0.5, "1", [1], np.nan])
def test_a_positive_class_is_the_index_of_a_class(measure, given):
    with pytest.raises(InputError, match=r"^positive_class is .*; it must be a whole number$"):
        measure(GOOD, LABELS, positive_class=given)


@pytest.mark.parametrize("measure", OF_A_CLASS)
@pytest.mark.parametrize("given", [-1, 2])
def test_a_positive_class_exists(measure, given):
    with pytest.raises(InputError, match=rf"^positive_class is {given}; it must lie in 0 … 1$"):
        measure(GOOD, LABELS, positive_class=given)


def test_an_index_of_numpy_is_a_class_too():
    assert brier(GOOD, LABELS, positive_class=np.int32(1)) == brier(GOOD, LABELS, positive_class=1)
    assert BinCounts.of(GOOD, LABELS, positive_class=np.int64(1)).positive_class == 1


BINNED = [ece, adaptive_ece, classwise_ece, squared_ece, lambda p, y, bins: Histogram.fit(np.log(p), y, bins=bins)]


@pytest.mark.parametrize("measure", BINNED)
def test_bins_are_a_whole_number_however_it_is_written(measure):
    assert (
        measure(GOOD, LABELS, bins=10.0) == measure(GOOD, LABELS, bins=np.int32(10)) == measure(GOOD, LABELS, bins=10)
    )


@pytest.mark.parametrize("measure", BINNED)
@pytest.mark.parametrize("bins", [2.5, "10", np.nan, np.inf, None, True])
def test_bins_that_are_no_whole_number_are_refused(measure, bins):
    with pytest.raises(InputError, match=r"^bins is .*; it must be a whole number$"):
        measure(GOOD, LABELS, bins=bins)


@pytest.mark.parametrize("measure", BINNED)
def test_no_bins_at_all_are_refused(measure):
    with pytest.raises(InputError, match=r"^bins is 0; at least one is needed$"):
        measure(GOOD, LABELS, bins=0)
