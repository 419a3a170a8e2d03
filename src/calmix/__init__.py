"""Train classifiers whose confidence can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calmix._version import __version__

if TYPE_CHECKING:
    from calmix.models import Classifier, Dropout, Ensemble, fit_head, load
    from calmix.sklearn import TextClassifier
    from calmix.training import distil, train

# Name → module. Resolved on first use, so that `import calmix` costs no torch.
_LAZY = {
    "train": "calmix.training",
    "distil": "calmix.training",
    "load": "calmix.models",
    "fit_head": "calmix.models",
    "Classifier": "calmix.models",
    "Dropout": "calmix.models",
    "Ensemble": "calmix.models",
    "TextClassifier": "calmix.sklearn",
}

__all__ = ["Classifier", "Dropout", "Ensemble", "TextClassifier", "__version__", "distil", "fit_head", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'calmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
