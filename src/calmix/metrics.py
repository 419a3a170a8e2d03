"""Metrics of accuracy and calibration: functions of probabilities [n, K] and integer labels [n]."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.calibration import (
        BinCounts,
        BrierParts,
        Interval,
        Reliability,
        RiskCoverage,
        accuracy,
        adaptive_ece,
        aurc,
        bootstrap,
        brier,
        brier_decomposition,
        classwise_ece,
        debiased_ece,
        ece,
        familiarity,
        fpr95,
        macro_f1,
        mcc,
        mce,
        nll,
        oe,
        ood_aupr,
        ood_auroc,
        ood_auroc_interval,
        paired_bootstrap,
        reliability,
        risk_coverage,
        smooth_ece,
        squared_ece,
        truth_distance,
    )

__all__ = [
    "BinCounts",
    "BrierParts",
    "Interval",
    "Reliability",
    "RiskCoverage",
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
    if name in __all__:
        return getattr(import_module("calmix.calibration"), name)
    raise AttributeError(f"module 'calmix.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
