import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calmix.calibration import compiled
from calmix.calibration.compiled import compiled_sums
from calmix.errors import InputError
from calmix.metrics import BinCounts, ece

NEVER, ALWAYS = sys.maxsize, 0


def plain(probs, labels, **how):
    """The counts that `stream` gives, as without numba."""
    with mock.patch.object(compiled, "_WORTH", NEVER):
        return BinCounts.of(probs, labels, **how).to_array()


def fast(probs, labels, bins=15, positive_class=None):
    with mock.patch.object(compiled, "_WORTH", ALWAYS):
        return compiled_sums(torch.as_tensor(probs), torch.as_tensor(labels), bins, positive_class)


@pytest.fixture(params=["as Python", "compiled"])
def kernel(request):
    """The pass over the data as it is written, wherever the tests run, and as numba compiles it."""
    if request.param == "compiled":
        pytest.importorskip("numba")
        yield
    else:
        with mock.patch.object(compiled, "_compiled", return_value=compiled._count):
            yield


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("positive_class", [None, 0, 1])
def test_one_pass_counts_what_several_count(awkward, positive_class):
    @given(st.data(), st.sampled_from([1, 7, 15, 100]))
    def check(data, bins):
        probs, labels = data.draw(awkward)
        how = {"bins": bins, "positive_class": positive_class}
        assert fast(probs, labels, **how) == pytest.approx(plain(probs, labels, **how), abs=1e-12)

    check()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("bins", [3, 10, 15, 49, 1000])
@pytest.mark.parametrize("nudge", [-1, 0, 1])
def test_edges_are_those_of_the_other_way_to_the_last_bit(bins, nudge):
    tops = np.arange(bins + 1) / bins
    tops = np.clip(tops if nudge == 0 else np.nextafter(tops, nudge), 0, 1)
    probs, labels = np.stack([tops, 1 - tops], 1), np.zeros(bins + 1, int)
    how = {"bins": bins, "positive_class": 0}
    assert fast(probs, labels, **how)[0].tolist() == plain(probs, labels, **how)[0].tolist()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("classes", [2, 9, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.nan, r"probs\[77\] holds NaN"),
        (-np.nan, r"probs\[77\] holds NaN"),
        (-1e-30, r"probs\[77\] holds -1e-30, a negative"),
        (np.inf, r"probs\[77\] sums to inf"),
        (-np.inf, r"probs\[77\] holds -inf, a negative"),
        (3.0, r"probs\[77\] sums to 3"),
    ],
)
def test_a_row_that_is_no_distribution_is_left_to_the_error_that_names_it(classes, dtype, value, says):
    probs = np.zeros((100, classes), dtype)
    probs[:, 0] = 1
    probs[77, 0] = 3.0 - 2 * (value != 3.0)
    probs[77, -1] = value if value != 3.0 else 0
    labels = np.zeros(100, int)
    assert fast(probs, labels) is None
    with mock.patch.object(compiled, "_WORTH", ALWAYS), pytest.raises(InputError, match=says):
        ece(probs, labels)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("label", [-1, 3, -100])
def test_a_label_that_is_no_class_is_left_to_the_error_that_names_it(label):
    probs, labels = np.full((100, 3), 1 / 3), np.zeros(100, int)
    labels[42] = label
    with mock.patch.object(compiled, "_WORTH", ALWAYS), pytest.raises(InputError, match=rf"labels\[42\] is {label};"):
        ece(probs, labels)


@pytest.mark.usefixtures("kernel")
def test_a_positive_class_that_is_none_is_an_error():
    with mock.patch.object(compiled, "_WORTH", ALWAYS), pytest.raises(InputError, match="positive_class is 3"):
        ece(np.full((100, 3), 1 / 3), np.zeros(100, int), positive_class=3)


@pytest.mark.usefixtures("kernel")
def test_what_only_looks_wrong_is_measured_all_the_same():
    probs, labels = np.array([[1.0, -0.0], [0.7, 0.3]]), np.array([0, 1])
    assert fast(probs, labels) is None
    with mock.patch.object(compiled, "_WORTH", ALWAYS):
        assert ece(probs, labels) == pytest.approx(0.35)


@pytest.mark.parametrize("classes", [3, 50, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_parts_threads_and_kinds_of_labels_change_nothing(draw, classes, dtype, kind):
    pytest.importorskip("numba")
    _, probs, labels = draw(0, 3000, classes)
    probs, labels = probs.astype(dtype), (labels % 256).astype(kind)
    probs.flags.writeable = False
    known = plain(probs, labels)
    threads = torch.get_num_threads()
    found = []
    try:
        with mock.patch.object(compiled, "_SPAN", 10_000), mock.patch.object(compiled, "_WORTH", ALWAYS):
            for count in (1, 3):
                torch.set_num_threads(count)
                found.append(BinCounts.of(probs, labels).to_array())
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(found[0], found[1])
    assert found[0] == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize(
    "probs",
    [
        torch.full((4, 3), 1 / 3, dtype=torch.bfloat16),
        torch.full((3, 4), 1 / 3).t(),
        torch.full((1, 3), 1 / 3).expand(4, 3),
    ],
)
def test_other_precisions_and_layouts_are_not_for_it(probs):
    assert fast(probs, torch.zeros(4, dtype=torch.int64)) is None


def test_small_input_loads_nothing(monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", lambda: pytest.fail("loaded"))
    ece(np.full((1000, 2), 0.5), np.zeros(1000, int))


def test_without_numba_the_result_is_the_same(monkeypatch, draw):
    _, probs, labels = draw(0, 1000)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(compiled, "_compiled", compiled._compiled.__wrapped__)
    monkeypatch.setattr(compiled, "_WORTH", ALWAYS)
    assert fast(probs, labels) is None
    assert np.array_equal(BinCounts.of(probs, labels).to_array(), plain(probs, labels))


def test_without_a_place_to_keep_it_it_is_compiled_all_the_same(monkeypatch):
    def njit(function, cache=False, **_):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return function

    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(njit=njit))
    assert compiled._compiled.__wrapped__() is compiled._count
