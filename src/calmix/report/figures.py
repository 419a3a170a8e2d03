"""What all figures share: their look, their styles, and how they are written. matplotlib is imported when drawing."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calmix.data import atomic_path
from calmix.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "STYLES", "figure_format", "literal", "look", "new_figure", "save_figure"]

# Told apart in grey and by colour-blind eyes as well: each has a marker of its own.
STYLES = (("#7b4ea3", "s"), ("#2a9d8f", "o"), ("#e9a23b", "^"), ("#c1121f", "D"), ("#457b9d", "v"))

FORMATS = ("png", "svg", "pdf")

# Without the salt, and with a date, no two SVG files of one figure are the same.
_LOOK = {"svg.hashsalt": "calmix", "font.size": 10, "savefig.dpi": 150, "pdf.fonttype": 42}


def look() -> AbstractContextManager[Any]:
    """Return the context that figures are drawn and written in; nothing global stays changed."""
    import matplotlib

    return matplotlib.rc_context(_LOOK)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def literal(text: str) -> str:
    """Return text that is drawn as it is: a dollar sign would begin a formula, and no font has control characters."""
    return "".join(c if c.isprintable() else " " for c in text).replace("$", r"\$")


def figure_format(path: str | Path) -> str:
    """Return the format that a file name says, or refuse it."""
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise InputError(f"{path}: figures are written as PNG, SVG or PDF; let the name end in .png, .svg or .pdf")
    return kind


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure, its format told by the name: the same figure gives the same bytes."""
    kind = figure_format(path)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with atomic_path(path) as temporary, look():
        figure.savefig(temporary, format=kind, metadata=undated.get(kind))
