"""Recalibrators: fitted on held-out logits and labels, then callable on logits."""

from calmix.calibration.temperature import Temperature

__all__ = ["Temperature"]
