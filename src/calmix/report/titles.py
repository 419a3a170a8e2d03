"""What figures are called, and how they read: shared by a study's tables and its page."""

__all__ = ["DECIMALS", "HIGHER", "TITLES"]

TITLES = {
    "accuracy": "Accuracy (%)",
    "mcc": "MCC (%)",
    "macro_f1": "Macro F1 (%)",
    "ece": "ECE (%)",
    "oe": "OE (%)",
    "nll": "NLL",
    "brier": "Brier score",
    "debiased_ece": "Debiased ECE (%)",
    "adaptive_ece": "Adaptive ECE (%)",
    "classwise_ece": "Class-wise ECE (%)",
    "smooth_ece": "Smooth ECE (%)",
    "mce": "MCE (%)",
    "aurc": "AURC (%)",
    "seconds": "Training seconds",
}

HIGHER = ("accuracy", "mcc", "macro_f1")
"""Figures of which more is better; of all others, less."""

DECIMALS = {"nll": 3, "brier": 3, "seconds": 1}
"""Of the figures that are no percentage."""
