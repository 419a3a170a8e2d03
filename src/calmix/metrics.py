"""Metrics of accuracy and calibration: functions of probabilities [n, K] and integer labels [n]."""

from calmix.calibration.binned import BinCounts, Reliability, ece, mce, oe, reliability
from calmix.calibration.scores import accuracy, brier, macro_f1, mcc, nll, truth_distance

__all__ = [
    "BinCounts",
    "Reliability",
    "accuracy",
    "brier",
    "ece",
    "macro_f1",
    "mcc",
    "mce",
    "nll",
    "oe",
    "reliability",
    "truth_distance",
]
