"""What training reveals about each sample: the recorder, regions, label issues, partners by saliency."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmix.dynamics.recorder import Recorder, row_lookup
    from calmix.dynamics.values import Dynamics, Pass

# File → names. Resolved on first use: a saved map can be read and cut into regions without torch.
_HOMES = {
    "recorder": "Recorder row_lookup",
    "values": "Dynamics Pass",
}
_LAZY = {name: f"calmix.dynamics.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = ["Dynamics", "Pass", "Recorder", "row_lookup"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'calmix.dynamics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
