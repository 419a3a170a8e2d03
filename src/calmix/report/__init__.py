"""Figures and pages: `prepare_*` gives the numbers, `draw_*` a picture of them, `write_*_page` a page."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.report.comparison import write_comparison
    from calmix.report.confusion import Confusion, draw_confusion, prepare_confusion
    from calmix.report.curves import TrainingCurves, draw_curves, fine_tuned, prepare_curves
    from calmix.report.datamap import DataMap, draw_datamap, prepare_datamap
    from calmix.report.entropies import draw_entropies, prepare_entropies
    from calmix.report.extended import draw_extended, prepare_extended
    from calmix.report.figures import save_figure
    from calmix.report.joint import draw_joint, prepare_joint
    from calmix.report.reliability import ReliabilityCurve, draw_reliability, prepare_reliability
    from calmix.report.rows import draw_alpha, draw_bars, prepare_alpha, prepare_bars, read_study_rows
    from calmix.report.run_page import write_run_page
    from calmix.report.runs import RunFolder, read_run
    from calmix.report.scatter import draw_scatter, prepare_scatter
    from calmix.report.selective import RiskCurve, draw_risk_coverage, prepare_risk_coverage
    from calmix.report.study_page import write_study_page
    from calmix.report.unfamiliar import ScoreDensity, draw_unfamiliar, prepare_unfamiliar
    from calmix.report.verdict import Verdict, prepare_verdict, verdict_of

# File → names. Resolved on first use: a page needs no matplotlib, a figure no jinja2.
_HOMES = {
    "comparison": "write_comparison",
    "confusion": "Confusion draw_confusion prepare_confusion",
    "curves": "TrainingCurves draw_curves fine_tuned prepare_curves",
    "datamap": "DataMap draw_datamap prepare_datamap",
    "entropies": "draw_entropies prepare_entropies",
    "extended": "draw_extended prepare_extended",
    "figures": "save_figure",
    "joint": "draw_joint prepare_joint",
    "reliability": "ReliabilityCurve draw_reliability prepare_reliability",
    "rows": "draw_alpha draw_bars prepare_alpha prepare_bars read_study_rows",
    "run_page": "write_run_page",
    "runs": "RunFolder read_run",
    "scatter": "draw_scatter prepare_scatter",
    "selective": "RiskCurve draw_risk_coverage prepare_risk_coverage",
    "study_page": "write_study_page",
    "unfamiliar": "ScoreDensity draw_unfamiliar prepare_unfamiliar",
    "verdict": "Verdict prepare_verdict verdict_of",
}
_LAZY = {name: f"calmix.report.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Confusion",
    "DataMap",
    "ReliabilityCurve",
    "RiskCurve",
    "RunFolder",
    "ScoreDensity",
    "TrainingCurves",
    "Verdict",
    "draw_alpha",
    "draw_bars",
    "draw_confusion",
    "draw_curves",
    "draw_datamap",
    "draw_entropies",
    "draw_extended",
    "draw_joint",
    "draw_reliability",
    "draw_risk_coverage",
    "draw_scatter",
    "draw_unfamiliar",
    "fine_tuned",
    "prepare_alpha",
    "prepare_bars",
    "prepare_confusion",
    "prepare_curves",
    "prepare_datamap",
    "prepare_entropies",
    "prepare_extended",
    "prepare_joint",
    "prepare_reliability",
    "prepare_risk_coverage",
    "prepare_scatter",
    "prepare_unfamiliar",
    "prepare_verdict",
    "read_run",
    "read_study_rows",
    "save_figure",
    "verdict_of",
    "write_comparison",
    "write_run_page",
    "write_study_page",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'calmix.report' has no attribute {name!r}")
