"""Figures and pages: `prepare_*` gives the numbers, `draw_*` a picture of them."""

from calmix.report.datamap import DataMap, draw_datamap, prepare_datamap, save_figure

__all__ = ["DataMap", "draw_datamap", "prepare_datamap", "save_figure"]
