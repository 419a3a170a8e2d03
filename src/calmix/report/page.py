"""One HTML file that opens anywhere: style, script and data are in it, and its policy lets nothing else run."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from calmix._version import __version__
from calmix.data import write_text
from calmix.report.packing import script_json, visible

__all__ = ["render_page", "write_page"]

_ASSETS = Path(__file__).parent / "assets"
# An option, as a command or a sentence has it.
_FLAG = re.compile(r"(?<!\S)--[a-z][\w-]*")
_SCRIPTS = (
    "dom.js",
    "charts.js",
    "reliability.js",
    "selective.js",
    "canvas.js",
    "decisions.js",
    "explorer.js",
    "comparison.js",
    "study.js",
    "main.js",
)


def render_page(template: str, *, data: Any, **context: Any) -> str:
    """Return the page of a template; `data` is what its script reads.

    The policy names the hash of our style and of our script: nothing else can run, whatever a text says, and
    nothing is fetched. What comes from data is escaped, with control characters shown as pictures.
    """
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            data=script_json(data),
            version=__version__,
            **context,
        )
    )


def write_page(path: str | Path, html: str) -> None:
    """Write a page, whole or not at all."""
    write_text(path, html)


@cache
def _style() -> str:
    return (_ASSETS / "page.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = [(_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {"percent": _percent, "number": _number, "count": lambda n: f"{n:,}", "signed": _signed}
    environment.filters["flags"] = _flags
    return environment


def _flags(text: str) -> Markup:
    """Return text in which no option of a command is broken after its hyphens."""
    return Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(visible(text)))))


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %".replace("-", "−")


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")
