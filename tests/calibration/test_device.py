"""The same numbers on an accelerator; skipped where there is none."""

import numpy as np
import pytest
import torch

import calmix.metrics as m
from calmix.calibration import ConformalSets, SelectiveThreshold
from calmix.recalibration import Histogram, Isotonic, Temperature, VectorScaling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

METRICS = [
    *(m.ece, m.mce, m.oe, m.adaptive_ece, m.classwise_ece, m.smooth_ece, m.debiased_ece, m.squared_ece),
    *(m.nll, m.brier, m.accuracy, m.macro_f1, m.mcc, m.aurc),
]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize("classes", [3, 20])
def test_a_metric_does_not_depend_on_the_device(draw, metric, classes):
    _, probs, labels = draw(0, 5000, classes=classes)
    there = torch.tensor(probs, device="cuda"), torch.tensor(labels, device="cuda")
    assert metric(*there) == pytest.approx(metric(probs, labels), abs=1e-9)


@pytest.mark.parametrize("kind", [Temperature, VectorScaling, Isotonic, Histogram])
def test_a_recalibrator_stays_on_the_device(draw, kind):
    logits, _, labels = draw(0, 5000)
    z, y = torch.tensor(logits * 3, device="cuda"), torch.tensor(labels, device="cuda")
    found = kind.fit(z, y)(z)
    assert found.device == z.device
    assert np.allclose(found.cpu().numpy(), kind.fit(logits * 3, labels)(logits * 3), atol=1e-6)


def test_selection_and_sets_stay_on_the_device(draw):
    _, probs, labels = draw(0, 2000)
    p, y = torch.tensor(probs, device="cuda"), torch.tensor(labels, device="cuda")
    for fitted, here in [
        (SelectiveThreshold.fit(p, y, accuracy=0.8), SelectiveThreshold.fit(probs, labels, accuracy=0.8)),
        (ConformalSets.fit(p, y, score="aps"), ConformalSets.fit(probs, labels, score="aps")),
    ]:
        assert fitted(p).device == p.device
        assert np.array_equal(fitted(p).cpu().numpy(), here(probs))
    inside, outside = p.amax(1)[:1000], p.amax(1)[1000:]
    for metric in (m.ood_auroc, m.ood_aupr, m.fpr95):
        assert metric(inside, outside) == pytest.approx(metric(inside.cpu(), outside.cpu()))
