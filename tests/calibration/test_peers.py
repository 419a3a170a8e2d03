"""Where other libraries agree with ours, and why not where they do not. Each is skipped if not installed."""

import numpy as np
import pytest
import torch

from calmix.calibration import smooth
from calmix.metrics import accuracy, adaptive_ece, aurc, brier, classwise_ece, ece, fpr95, mce, nll, smooth_ece
from calmix.recalibration import Temperature


@pytest.fixture(scope="module")
def torchmetrics():
    return pytest.importorskip("torchmetrics.functional.classification", exc_type=ImportError)


@pytest.fixture(scope="module")
def netcal():
    return pytest.importorskip("netcal.metrics", exc_type=ImportError)


@pytest.fixture(scope="module")
def relplot():
    return pytest.importorskip("relplot.metrics", exc_type=ImportError)


@pytest.fixture(scope="module")
def torch_uncertainty():
    return pytest.importorskip("torch_uncertainty.metrics.classification", exc_type=ImportError)


def test_torchmetrics_agrees_to_float32(torchmetrics, draw):
    _, probs, labels = draw(0, 2000)
    p, y = torch.tensor(probs), torch.tensor(labels)
    theirs = torchmetrics.multiclass_calibration_error
    assert ece(probs, labels) == pytest.approx(float(theirs(p, y, num_classes=3, n_bins=15)), abs=1e-6)
    assert mce(probs, labels) == pytest.approx(float(theirs(p, y, num_classes=3, n_bins=15, norm="max")), abs=1e-6)


def test_torchmetrics_sums_in_float32_and_loses_count(torchmetrics):
    rows = 2**24 + 2**22
    probs = torch.tensor([[0.75, 0.25]]).expand(rows, 2)
    labels = torch.zeros(rows, dtype=torch.int64)
    theirs = float(torchmetrics.multiclass_calibration_error(probs, labels, num_classes=2))
    assert abs(theirs - 0.25) > 0.01
    assert ece(probs, labels) == 0.25


def test_torchmetrics_takes_the_softmax_of_everything_when_one_number_exceeds_one(torchmetrics):
    probs = torch.tensor([[1.0000001, 0.0], [0.6, 0.4], [0.3, 0.7]])
    labels = torch.tensor([0, 0, 1])
    theirs = float(torchmetrics.multiclass_calibration_error(probs, labels, num_classes=2))
    softened = float(torchmetrics.multiclass_calibration_error(probs.softmax(1), labels, num_classes=2))
    assert theirs == softened
    assert ece(probs, labels) == pytest.approx((0 + 0.4 + 0.3) / 3, abs=1e-6)


def test_netcal_agrees_on_more_than_two_classes(netcal, draw):
    _, probs, labels = draw(0, 2000)
    for kind in (probs, probs.astype(np.float32)):
        assert ece(kind, labels) == pytest.approx(netcal.ECE(15).measure(kind, labels), abs=1e-9)
        assert mce(kind, labels) == pytest.approx(netcal.MCE(15).measure(kind, labels), abs=1e-9)


def test_netcal_reads_two_classes_as_positive_class_and_not_as_top_label(netcal, draw):
    _, probs, labels = draw(0, 2000, classes=2)
    theirs = netcal.ECE(15).measure(probs, labels)
    assert ece(probs, labels, positive_class=1) == pytest.approx(theirs, abs=1e-9)
    assert ece(probs, labels) != pytest.approx(theirs, abs=1e-4)


def test_the_ace_of_netcal_is_the_average_over_bins_and_not_adaptive(netcal, draw):
    _, probs, labels = draw(0, 2000)
    assert adaptive_ece(probs, labels) != pytest.approx(netcal.ACE(15).measure(probs, labels), abs=1e-4)


def test_the_temperature_of_netcal_does_not_move_on_float32_and_falls_short_on_sharp_float64(draw):
    scaling = pytest.importorskip("netcal.scaling", exc_type=ImportError)
    logits, probs, labels = draw(0, 2000)
    single = scaling.TemperatureScaling()
    single.fit(probs.astype(np.float32) ** 3 / (probs.astype(np.float32) ** 3).sum(1, keepdims=True), labels)
    assert float(single.temperature[0]) == 1
    sharp = torch.softmax(torch.tensor(logits * 20), 1).numpy()
    double = scaling.TemperatureScaling()
    double.fit(sharp, labels)
    assert 1 / float(double.temperature[0]) < 18  # probabilities that rounded to 0 and 1 have lost the logits
    assert Temperature.fit((logits * 20).astype(np.float32), labels).temperature == pytest.approx(20, rel=0.1)


def test_relplot_agrees_at_a_fixed_narrow_width(relplot, draw, sharpen):
    _, probs, labels = draw(0, 2000)
    probs = sharpen(probs, 1.5)
    top, hit = probs.max(1), (probs.argmax(1) == labels) * 1.0
    gaps = torch.tensor(top - hit)
    spectrum = smooth._cosines(smooth._spread(torch.tensor(top), gaps)) / len(top)
    assert smooth._at(spectrum, 0.05) == pytest.approx(relplot.smECE_sigma(top, hit, 0.05), rel=0.03)
    assert smooth_ece(probs, labels) == pytest.approx(relplot.smECE(top, hit), abs=0.01)


def test_relplot_loses_half_of_what_lies_at_the_very_ends(relplot, draw, sharpen, monkeypatch):
    # A confidence of 1 and its mirror image coincide; relplot's mirrored grid leaves the image out.
    kernels = pytest.importorskip("relplot.kernels", exc_type=ImportError)
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


def test_torch_uncertainty_agrees_to_float32(torch_uncertainty, draw, sharpen):
    def theirs(metric, *data):
        metric.update(*map(torch.tensor, data))
        return pytest.approx(float(metric.compute()), abs=1e-6)

    _, probs, labels = draw(0, 2000)
    probs = sharpen(probs, 1.5)
    binned = {"task": "multiclass", "num_classes": 3, "num_bins": 15}
    assert ece(probs, labels) == theirs(torch_uncertainty.CalibrationError(**binned), probs, labels)
    assert adaptive_ece(probs, labels) == theirs(torch_uncertainty.AdaptiveCalibrationError(**binned), probs, labels)
    classwise = torch_uncertainty.ClasswiseCalibrationError(num_classes=3, num_bins=15)
    assert classwise_ece(probs, labels) == theirs(classwise, probs, labels)
    assert brier(probs, labels) == theirs(torch_uncertainty.BrierScore(num_classes=3), probs, labels)
    assert nll(probs, labels) == theirs(torch_uncertainty.CategoricalNLL(), probs, labels)
    inside, outside = probs[:1200].max(1), probs[1200:].max(1)
    scores, known = np.concatenate([inside, outside]), np.repeat([1, 0], [1200, 800])
    assert fpr95(inside, outside) == theirs(torch_uncertainty.FPR95(pos_label=1), scores, known)


def test_torch_uncertainty_smooths_on_a_grid_and_agrees_to_two_digits(torch_uncertainty, draw, sharpen):
    _, probs, labels = draw(0, 2000)
    probs = sharpen(probs, 1.5).astype(np.float32)
    metric = torch_uncertainty.SmoothCalibrationError(kernel_type="reflected")
    metric.update(torch.tensor(probs), torch.tensor(labels))
    assert smooth_ece(probs, labels) == pytest.approx(float(metric.compute()), abs=0.005)


def test_torch_uncertainty_lets_the_order_of_tied_rows_decide(torch_uncertainty):
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


def test_scikit_learn_finds_the_same_temperature(draw):
    calibration = pytest.importorskip("sklearn.calibration")
    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("scikit-learn before 1.8 has no temperature scaling")
    logits, _, labels = draw(0, 2000)
    theirs = calibration._TemperatureScaling().fit(logits * 3, labels)
    fitted = Temperature.fit(logits * 3, labels)
    assert fitted.temperature == pytest.approx(1 / theirs.beta_, rel=1e-4)
    assert accuracy(fitted(logits * 3), labels) == (logits.argmax(1) == labels).mean()
