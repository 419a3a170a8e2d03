"""What training reveals about each sample: the recorder, regions, label issues, partners by saliency."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.dynamics.cartography import Half, Region, absent_classes, aum_halves, easy_and_ambiguous, regions
    from calmix.dynamics.history import History
    from calmix.dynamics.issues import LabelIssues, label_issues
    from calmix.dynamics.recorder import Recorder, row_lookup
    from calmix.dynamics.saliency import batch_partners, cosine, head_cosine, residual, saliency_map, two_class_vectors
    from calmix.dynamics.searching import (
        Vectors,
        distinct_partners,
        farthest_of_drawn,
        nearest_of_all,
        nearest_of_three_classes,
        random_partners,
        set_partners,
    )
    from calmix.dynamics.thresholds import (
        Relabelling,
        ThresholdRun,
        aum_filter,
        aum_filter_pair,
        threshold_pair,
        threshold_runs,
        threshold_samples,
    )
    from calmix.dynamics.values import Dynamics, Pass

# File → names. Resolved on first use: a saved map can be read and cut into regions without torch.
_HOMES = {
    "cartography": "Half Region absent_classes aum_halves easy_and_ambiguous regions",
    "history": "History",
    "issues": "LabelIssues label_issues",
    "recorder": "Recorder row_lookup",
    "saliency": "batch_partners cosine head_cosine residual saliency_map two_class_vectors",
    "searching": "Vectors distinct_partners farthest_of_drawn nearest_of_all nearest_of_three_classes random_partners "
    "set_partners",
    "thresholds": "Relabelling ThresholdRun aum_filter aum_filter_pair threshold_pair threshold_runs threshold_samples",
    "values": "Dynamics Pass",
}
_LAZY = {name: f"calmix.dynamics.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Dynamics",
    "Half",
    "History",
    "LabelIssues",
    "Pass",
    "Recorder",
    "Region",
    "Relabelling",
    "ThresholdRun",
    "Vectors",
    "absent_classes",
    "aum_filter",
    "aum_filter_pair",
    "aum_halves",
    "batch_partners",
    "cosine",
    "distinct_partners",
    "easy_and_ambiguous",
    "farthest_of_drawn",
    "head_cosine",
    "label_issues",
    "nearest_of_all",
    "nearest_of_three_classes",
    "random_partners",
    "regions",
    "residual",
    "row_lookup",
    "saliency_map",
    "set_partners",
    "threshold_pair",
    "threshold_runs",
    "threshold_samples",
    "two_class_vectors",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'calmix.dynamics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
