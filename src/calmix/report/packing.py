"""Data inside a page: numbers and texts as compressed columns, and JSON that cannot end the element it is in."""

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from numpy.typing import NDArray

__all__ = ["pack", "pack_texts", "script_json", "visible"]

_TYPES = {"float32": "f32", "uint8": "u8", "uint16": "u16", "uint32": "u32", "int32": "i32"}
# Control characters as pictures of themselves: browsers drop some and act on others.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


def pack(values: NDArray[Any]) -> dict[str, str]:
    """Return a column of numbers as the page reads it: its type, and the compressed bytes in base64."""
    if values.dtype.name not in _TYPES:
        raise TypeError(f"columns are packed as {', '.join(_TYPES)}, not {values.dtype}")
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return {"type": _TYPES[values.dtype.name], "data": _deflated(little.tobytes())}


def pack_texts(values: Sequence[Any]) -> dict[str, str]:
    """Return texts, or lists of them, as the page reads them: compressed JSON, exact whatever is in it."""
    return {"type": "json", "data": _deflated(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode())}


def script_json(value: Any) -> Markup:
    """Return JSON to stand inside a script element: no text can end it, or begin a comment in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def visible(text: str) -> str:
    """Return text with control characters, NUL among them, as pictures of themselves."""
    return text.translate(_PICTURES)


def _deflated(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode("ascii")
