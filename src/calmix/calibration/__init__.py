"""Metrics, recalibration and selective prediction: functions on arrays."""
