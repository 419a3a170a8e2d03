"""Where other libraries agree with ours, on random data and on edges, and why not where they do not.

They have an environment of their own: `make test-peers`. There all of them must be; elsewhere this file is skipped.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch

from calmix.calibration import smooth
from calmix.metrics import adaptive_ece, aurc, brier, classwise_ece, ece, fpr95, mce, nll, smooth_ece
from calmix.recalibration import Temperature

relplot = pytest.importorskip("relplot.metrics", reason="make test-peers has the other libraries")
netcal = import_module("netcal.metrics")
netcal_scaling = import_module("netcal.scaling")
torchmetrics = import_module("torchmetrics.functional.classification")


def without_parents(name):
    """A module of a package, without what the package imports on its way (here lightning, timm and torchvision)."""
    parents = name.split(".")[:-1]
    places = list(find_spec(parents[0]).submodule_search_locations)
    for depth, part in enumerate(parents):
        places = [f"{place}/{part}" for place in places] if depth else places
        package = ModuleType(".".join(parents[: depth + 1]))
        package.__path__ = places
        sys.modules[package.__name__] = package
    return import_module(name)


torch_uncertainty = without_parents("torch_uncertainty.metrics.classification")

SEEDS = range(25)


def random_data(seed):
    """Probabilities of 3 to 8 classes, sure or not, and labels drawn from them: gaps of both signs."""
    rng = np.random.default_rng(seed)
    classes, rows = int(rng.integers(3, 9)), int(rng.integers(10, 300))
    probs = rng.dirichlet(np.full(classes, rng.choice([0.1, 1.0, 5.0])), rows)
    return probs, drawn_from(probs, rng)


def drawn_from(probs, rng):
    """Labels drawn from the probabilities of their rows; the first three are three different ones."""
    labels = (rng.random(len(probs))[:, None] > probs.cumsum(1)).sum(1).clip(0, probs.shape[1] - 1)
    labels[:3] = [0, 1, 2]
    return labels


def with_edges(seed, bins):
    """The same, half of the rows with a largest probability that is an edge of a bin, 1 included."""
    probs, _ = random_data(seed)
    rng, rows = np.random.default_rng([seed, 1]), len(probs) // 2
    top = rng.integers(bins // 2 + 1, bins + 1, rows) / bins
    probs[:rows] = (1 - top[:, None]) / (probs.shape[1] - 1)
    probs[np.arange(rows), rng.integers(0, probs.shape[1], rows)] = top
    return probs, drawn_from(probs, rng)


def ece_in(where, top, hit):
    """ECE with the row's bins as given."""
    return np.abs(np.bincount(where, weights=top.astype(float) - hit)).sum() / len(top)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_off_the_edges_torchmetrics_agrees_to_float32(seed, dtype):
    probs, labels = random_data(seed)
    probs, how = probs.astype(dtype), {"num_classes": probs.shape[1], "n_bins": 15}
    p, y = torch.tensor(probs), torch.tensor(labels)
    theirs = torchmetrics.multiclass_calibration_error
    assert ece(probs, labels) == pytest.approx(float(theirs(p, y, **how)), abs=1e-6)
    assert mce(probs, labels) == pytest.approx(float(theirs(p, y, **how, norm="max")), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bins", [10, 15])
def test_torchmetrics_opens_its_bins_on_the_right_in_float32_and_keeps_1_apart(seed, bins):
    probs, labels = with_edges(seed, bins)
    theirs = torchmetrics.multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes=probs.shape[1], n_bins=bins
    )
    top, hit = torch.tensor(probs.max(1)).float(), probs.argmax(1) == labels
    where = torch.bucketize(top, torch.linspace(0, 1, bins + 1), right=True) - 1
    assert ece_in(where.numpy(), top.numpy(), hit) == pytest.approx(float(theirs), abs=1e-6)


def test_on_an_edge_torchmetrics_and_netcal_take_the_bin_above_and_ours_the_one_below():
    # 0.5 is an edge of two bins. Below it a row that is too modest, above it one that is too sure.
    probs = np.array([[0.5, 0.3, 0.2], [0.45, 0.35, 0.2], [0.2, 0.2, 0.6]])
    labels = np.array([0, 1, 0])
    assert ece(probs, labels, bins=2) == pytest.approx((abs(0.5 - 1 + 0.45) + 0.6) / 3)
    theirs = torchmetrics.multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes=3, n_bins=2
    )
    assert float(theirs) == pytest.approx((0.45 + abs(0.5 - 1 + 0.6)) / 3)
    labels = np.array([0, 1, 1])  # netcal wants three labels to see three classes
    more, further = np.vstack([probs, [[0.1, 0.2, 0.7]]]), np.append(labels, 2)
    assert ece(more, further, bins=2) == pytest.approx((abs(0.5 - 1 + 0.45) + abs(0.6 + 0.7 - 1)) / 4)
    assert netcal.ECE(2).measure(more, further) == pytest.approx((0.45 + abs(0.5 + 0.6 + 0.7 - 2)) / 4)


def test_a_confidence_of_exactly_1_is_a_bin_of_its_own_in_torchmetrics():
    probs, labels = np.array([[1.0, 0.0, 0.0], [0.95, 0.05, 0.0]]), np.array([1, 0])
    theirs = torchmetrics.multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes=3, n_bins=10
    )
    assert float(theirs) == pytest.approx((1 + 0.05) / 2)
    assert ece(probs, labels, bins=10) == pytest.approx((1 - 0.05) / 2)


def test_torchmetrics_sums_in_float32_and_loses_count():
    rows = 2**24 + 2**22
    probs = torch.tensor([[0.75, 0.25]]).expand(rows, 2)
    labels = torch.zeros(rows, dtype=torch.int64)
    theirs = float(torchmetrics.multiclass_calibration_error(probs, labels, num_classes=2))
    assert abs(theirs - 0.25) > 0.01
    assert ece(probs, labels) == 0.25


def test_torchmetrics_takes_the_softmax_of_everything_when_one_number_exceeds_one():
    probs = torch.tensor([[1.0000001, 0.0], [0.6, 0.4], [0.3, 0.7]])
    labels = torch.tensor([0, 0, 1])
    theirs = float(torchmetrics.multiclass_calibration_error(probs, labels, num_classes=2))
    softened = float(torchmetrics.multiclass_calibration_error(probs.softmax(1), labels, num_classes=2))
    assert theirs == softened
    assert ece(probs, labels) == pytest.approx((0 + 0.4 + 0.3) / 3, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_off_the_edges_netcal_agrees_on_more_than_two_classes(seed, dtype):
    probs, labels = random_data(seed)
    probs = probs.astype(dtype)
    assert ece(probs, labels) == pytest.approx(netcal.ECE(15).measure(probs, labels), abs=1e-6)
    assert mce(probs, labels) == pytest.approx(netcal.MCE(15).measure(probs, labels), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bins", [10, 15])
def test_netcal_opens_its_bins_on_the_right_and_closes_the_last(seed, bins):
    probs, labels = with_edges(seed, bins)
    top, hit = probs.max(1), probs.argmax(1) == labels
    where = (np.searchsorted(np.linspace(0, 1, bins + 1), top, side="right") - 1).clip(max=bins - 1)
    assert ece_in(where, top, hit) == pytest.approx(netcal.ECE(bins).measure(probs, labels), abs=1e-9)


def test_netcal_sees_no_third_class_where_only_two_labels_occur():
    probs, labels = random_data(0)
    with pytest.raises(RuntimeError, match="binary classification"):
        netcal.ECE(15).measure(probs, labels % 2)
    assert ece(probs, labels % 2) > 0


def test_netcal_reads_two_classes_as_positive_class_and_not_as_top_label(draw):
    _, probs, labels = draw(0, 2000, classes=2)
    theirs = netcal.ECE(15).measure(probs, labels)
    assert ece(probs, labels, positive_class=1) == pytest.approx(theirs, abs=1e-9)
    assert ece(probs, labels) != pytest.approx(theirs, abs=1e-4)


def test_the_ace_of_netcal_is_the_average_over_bins_and_not_adaptive(draw):
    _, probs, labels = draw(0, 2000)
    assert adaptive_ece(probs, labels) != pytest.approx(netcal.ACE(15).measure(probs, labels), abs=1e-4)


def test_the_temperature_of_netcal_does_not_move_on_float32_and_falls_short_on_sharp_float64(draw):
    logits, probs, labels = draw(0, 2000)
    single = netcal_scaling.TemperatureScaling()
    single.fit(probs.astype(np.float32) ** 3 / (probs.astype(np.float32) ** 3).sum(1, keepdims=True), labels)
    assert float(single.temperature[0]) == 1
    sharp = torch.softmax(torch.tensor(logits * 20), 1).numpy()
    double = netcal_scaling.TemperatureScaling()
    double.fit(sharp, labels)
    assert 1 / float(double.temperature[0]) < 18  # probabilities that rounded to 0 and 1 have lost the logits
    assert Temperature.fit((logits * 20).astype(np.float32), labels).temperature == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_relplot_agrees_on_smooth_ece_to_two_digits(draw, sharpen, seed, power):
    _, probs, labels = draw(seed, 2000)
    probs = sharpen(probs, power)
    top, hit = probs.max(1), (probs.argmax(1) == labels) * 1.0
    assert smooth_ece(probs, labels) == pytest.approx(relplot.smECE(top, hit), abs=0.01)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.2])
def test_relplot_agrees_at_a_fixed_width(draw, seed, sigma):
    _, probs, labels = draw(seed, 2000, scale=1.0)  # none next to 1
    top, hit = probs.max(1), (probs.argmax(1) == labels) * 1.0
    grid = smooth._spread(torch.tensor(top), torch.tensor(top - hit)).numpy()
    ours = smooth._at(smooth._cosines(grid) / len(top), smooth._POINTS, sigma)
    assert ours == pytest.approx(relplot.smECE_sigma(top, hit, sigma), rel=0.03, abs=2e-4)


def test_relplot_loses_half_of_what_lies_at_the_very_ends(draw, sharpen, monkeypatch):
    # A confidence of 1 and its mirror image coincide; relplot's mirrored grid leaves the image out.
    kernels = import_module("relplot.kernels")
    rounded = kernels.smooth_round_to_grid

    def with_image(f, y, eval_points=1000):
        values = rounded(f, y, eval_points)
        values[[0, -1]] *= 2
        return values

    _, probs, labels = draw(0, 2000)
    probs = sharpen(probs, 5)
    top, hit = probs.max(1), (probs.argmax(1) == labels) * 1.0
    ours = smooth_ece(probs, labels)
    assert abs(relplot.smECE_sigma(top, hit, ours) - ours) > 0.01
    monkeypatch.setattr(kernels, "smooth_round_to_grid", with_image)
    assert relplot.smECE_sigma(top, hit, ours) == pytest.approx(ours, abs=1e-3)


def test_torch_uncertainty_agrees_to_float32(draw, sharpen):
    def theirs(metric, *data):
        metric.update(*map(torch.tensor, data))
        return pytest.approx(float(metric.compute()), abs=1e-6)

    _, probs, labels = draw(0, 2000)
    probs = sharpen(probs, 1.5)
    binned = {"task": "multiclass", "num_classes": 3, "num_bins": 15}
    assert ece(probs, labels) == theirs(torch_uncertainty.CalibrationError(**binned), probs, labels)
    classwise = torch_uncertainty.ClasswiseCalibrationError(num_classes=3, num_bins=15)
    assert classwise_ece(probs, labels) == theirs(classwise, probs, labels)
    assert brier(probs, labels) == theirs(torch_uncertainty.BrierScore(num_classes=3), probs, labels)
    assert nll(probs, labels) == theirs(torch_uncertainty.CategoricalNLL(), probs, labels)
    inside, outside = probs[:1200].max(1), probs[1200:].max(1)
    scores, known = np.concatenate([inside, outside]), np.repeat([1, 0], [1200, 800])
    assert fpr95(inside, outside) == theirs(torch_uncertainty.FPR95(pos_label=1), scores, known)


def their_adaptive_ece(probs, labels):
    metric = torch_uncertainty.AdaptiveCalibrationError(task="multiclass", num_classes=probs.shape[1], num_bins=15)
    metric.update(torch.tensor(probs), torch.tensor(labels))
    return float(metric.compute())


@pytest.mark.parametrize("seed", range(10))
def test_torch_uncertainty_agrees_on_adaptive_ece_where_bins_come_out_even(draw, seed):
    _, probs, labels = draw(seed, 1500)
    gaps = (probs.max(1) - (probs.argmax(1) == labels))[probs.max(1).argsort()].reshape(15, 100).mean(1)
    assert gaps.min() < 0 < gaps.max()  # of one sign, they would add up to the same in any bins
    assert adaptive_ece(probs, labels) == pytest.approx(their_adaptive_ece(probs, labels), abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_where_bins_do_not_come_out_even_torch_uncertainty_gives_the_first_ones_a_row_more(draw, seed):
    _, probs, labels = draw(seed, 40)
    gaps = (probs.max(1) - (probs.argmax(1) == labels))[probs.max(1).argsort()]
    by_place = sum(abs(part.sum()) for part in np.array_split(gaps, 15)) / 40
    ends = [-(-40 * m // 15) for m in range(16)]
    ours = sum(abs(gaps[a:b].sum()) for a, b in pairwise(ends)) / 40
    assert their_adaptive_ece(probs, labels) == pytest.approx(by_place, abs=1e-6)
    assert adaptive_ece(probs, labels) == pytest.approx(ours, abs=1e-9)
    assert abs(ours - by_place) > 1e-3


def test_torch_uncertainty_parts_rows_of_equal_confidence():
    probs, labels = np.tile([0.8, 0.2], (30, 1)), np.repeat([0, 1], [14, 16])
    assert their_adaptive_ece(probs, labels) > 0.4
    assert adaptive_ece(probs, labels) == pytest.approx(0.8 - 14 / 30)


def test_torch_uncertainty_smooths_on_a_grid_and_agrees_to_two_digits(draw, sharpen):
    _, probs, labels = draw(0, 2000)
    probs = sharpen(probs, 1.5).astype(np.float32)
    metric = torch_uncertainty.SmoothCalibrationError(kernel_type="reflected")
    metric.update(torch.tensor(probs), torch.tensor(labels))
    assert smooth_ece(probs, labels) == pytest.approx(float(metric.compute()), abs=0.005)


def test_torch_uncertainty_lets_the_order_of_tied_rows_decide():
    probs = np.tile([0.8, 0.2], (10, 1))
    labels = np.repeat([0, 1], 5)
    values = []
    for order in (labels, labels[::-1].copy()):
        metric = torch_uncertainty.AURC()
        metric.update(torch.tensor(probs), torch.tensor(order))
        values.append(float(metric.compute()))
    assert abs(values[0] - values[1]) > 0.5
    assert aurc(probs, labels) == pytest.approx(0.5)
    assert aurc(probs, labels[::-1].copy()) == pytest.approx(0.5)
