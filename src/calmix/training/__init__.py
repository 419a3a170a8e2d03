"""The loop, the run folder, and the whole way from a table to a calibrated checkpoint."""

from calmix.training.correcting import calibrate
from calmix.training.distillation import distil
from calmix.training.evaluating import differences, intervals, json_safe, measure, measure_groups
from calmix.training.exporting import export_onnx
from calmix.training.folder import FinishedRun
from calmix.training.halves import Run, finished_run
from calmix.training.launching import processes
from calmix.training.loop import Progress
from calmix.training.pipeline import train
from calmix.training.predictions import prediction_table, prediction_tables, read_predictions, with_guarantees
from calmix.training.pushing import check_name, push
from calmix.training.surveying import Survey, survey

__all__ = [
    "FinishedRun",
    "Progress",
    "Run",
    "Survey",
    "calibrate",
    "check_name",
    "differences",
    "distil",
    "export_onnx",
    "finished_run",
    "intervals",
    "json_safe",
    "measure",
    "measure_groups",
    "prediction_table",
    "prediction_tables",
    "processes",
    "push",
    "read_predictions",
    "survey",
    "train",
    "with_guarantees",
]
