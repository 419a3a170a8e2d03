"""Figures and pages: `prepare_*` gives the numbers, `draw_*` a picture of them."""

from calmix.report.datamap import DataMap, draw_datamap, prepare_datamap, save_figure
from calmix.report.reliability import ReliabilityCurve, draw_reliability, prepare_reliability

__all__ = [
    "DataMap",
    "ReliabilityCurve",
    "draw_datamap",
    "draw_reliability",
    "prepare_datamap",
    "prepare_reliability",
    "save_figure",
]
