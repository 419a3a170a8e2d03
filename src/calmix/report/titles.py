"""What figures are called, and how they read: shared by a study's tables and its page."""

from pathlib import Path

__all__ = ["DECIMALS", "HIGHER", "TITLES", "model_title"]

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


def model_title(model: str) -> str:
    """Return what a model is called in tables: the name of its folder; a sentence CNN without its word vectors."""
    return Path(model.partition(":")[0] if model.startswith("sentence-cnn:") else model).name
