"""The loop, the run folder, and the whole way from a table to a calibrated checkpoint."""

from calmix.training.correcting import calibrate
from calmix.training.evaluating import intervals, measure, measure_groups
from calmix.training.loop import Progress
from calmix.training.pipeline import Run, train
from calmix.training.predictions import prediction_table, read_predictions, with_guarantees
from calmix.training.pushing import push

__all__ = [
    "Progress",
    "Run",
    "calibrate",
    "intervals",
    "measure",
    "measure_groups",
    "prediction_table",
    "push",
    "read_predictions",
    "train",
    "with_guarantees",
]
