"""Metrics, recalibration and selective prediction: functions on arrays."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.calibration.adaptive import adaptive_ece
    from calmix.calibration.binned import BinCounts, Reliability, ece, mce, oe, reliability
    from calmix.calibration.classwise import BrierParts, brier_decomposition, classwise_ece
    from calmix.calibration.conformal import ConformalSets
    from calmix.calibration.debiased import debiased_ece, squared_ece
    from calmix.calibration.onevsrest import Histogram, Isotonic
    from calmix.calibration.ood import familiarity, fpr95, ood_aupr, ood_auroc, ood_auroc_interval
    from calmix.calibration.ranking import RiskCoverage, aurc, risk_coverage
    from calmix.calibration.recalibration import Recalibrator, from_json
    from calmix.calibration.resampling import Interval, bootstrap, paired_bootstrap
    from calmix.calibration.scores import accuracy, brier, macro_f1, mcc, nll, truth_distance
    from calmix.calibration.selective import SelectiveThreshold
    from calmix.calibration.smooth import smooth_ece
    from calmix.calibration.temperature import Temperature
    from calmix.calibration.vector import VectorScaling

# File → names. Resolved on first use: the arithmetic is torch's, and importing this should not pay for it.
_HOMES = {
    "adaptive": "adaptive_ece",
    "binned": "BinCounts Reliability ece mce oe reliability",
    "classwise": "BrierParts brier_decomposition classwise_ece",
    "conformal": "ConformalSets",
    "debiased": "debiased_ece squared_ece",
    "onevsrest": "Histogram Isotonic",
    "ood": "familiarity fpr95 ood_aupr ood_auroc ood_auroc_interval",
    "ranking": "RiskCoverage aurc risk_coverage",
    "recalibration": "Recalibrator from_json",
    "resampling": "Interval bootstrap paired_bootstrap",
    "scores": "accuracy brier macro_f1 mcc nll truth_distance",
    "selective": "SelectiveThreshold",
    "smooth": "smooth_ece",
    "temperature": "Temperature",
    "vector": "VectorScaling",
}
_LAZY = {name: f"calmix.calibration.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BinCounts",
    "BrierParts",
    "ConformalSets",
    "Histogram",
    "Interval",
    "Isotonic",
    "Recalibrator",
    "Reliability",
    "RiskCoverage",
    "SelectiveThreshold",
    "Temperature",
    "VectorScaling",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "familiarity",
    "fpr95",
    "from_json",
    "macro_f1",
    "mcc",
    "mce",
    "nll",
    "oe",
    "ood_aupr",
    "ood_auroc",
    "ood_auroc_interval",
    "paired_bootstrap",
    "reliability",
    "risk_coverage",
    "smooth_ece",
    "squared_ece",
    "truth_distance",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'calmix.calibration' has no attribute {name!r}")
