"""The loop, the run folder, and the whole way from a table to a calibrated checkpoint."""
