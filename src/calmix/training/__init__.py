"""The loop, the run folder, and the whole way from a table to a calibrated checkpoint."""

from calmix.training.evaluating import measure, softmax
from calmix.training.loop import Progress
from calmix.training.pipeline import Run, train
from calmix.training.predictions import prediction_table
from calmix.training.pushing import push

__all__ = ["Progress", "Run", "measure", "prediction_table", "push", "softmax", "train"]
