"""Where data came from, so that a message can name the place."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from calmix.errors import InputError

__all__ = ["Origin", "check_no_address", "closest", "few", "listed", "neighbour", "shown"]


def shown(value: object, *, limit: int = 60) -> str:
    """A value from data on one printable line: quoted, control characters escaped, cut at `limit`."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit + 2 else text[:limit] + "…"


def listed(values: Iterable[object], *, limit: int = 20) -> str:
    """Values from data, comma-separated, the first `limit` of them."""
    values = list(values)
    rest = f" and {len(values) - limit} more" if len(values) > limit else ""
    return ", ".join(shown(value) for value in values[:limit]) + rest


def few(told: Sequence[str], *, limit: int = 3) -> str:
    """The first `limit` of several things to tell, comma-separated, and how many more there are."""
    rest = f", and {len(told) - limit} more" if len(told) > limit else ""
    return ", ".join(told[:limit]) + rest


def closest(name: str, known: Sequence[str]) -> str:
    """`"; did you mean 'x'?"` when a known name resembles `name`, otherwise nothing."""
    folded = {other.casefold(): other for other in known}
    match = get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {shown(folded[match[0]])}?" if match else ""


def neighbour(path: str | Path, holds: Callable[[Path], bool] = Path.is_file) -> str:
    """The same question about what is beside a path that is not there, if it `holds` what is looked for.

    Endings do not count: all tables have the same few.
    """
    before, tail = os.path.split(os.fspath(path).rstrip("/"))
    beside: list[str] = []
    with suppress(OSError):  # a place that is not there, or not for us to look at
        beside += [entry.name for entry in sorted(Path(before or ".").iterdir()) if holds(entry)]
    stem = Path(tail).stem.casefold()
    stems = get_close_matches(stem, {Path(name).stem.casefold() for name in beside}, n=1, cutoff=0.65)
    alike = [name for name in beside if Path(name).stem.casefold() in stems]
    if not alike:
        return ""
    best = max(alike, key=lambda name: SequenceMatcher(None, name, tail).ratio())
    return f"; did you mean {shown(os.path.join(before, best), limit=200)}?"


def check_no_address(source: str | Path, instead: str = "download it, and give the file") -> None:
    """Refuse the address of something elsewhere, which nothing here fetches."""
    name = os.fspath(source)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", name) and not os.path.exists(name):
        raise InputError(f"{name}: is an address; {instead}")


@dataclass(frozen=True)
class Origin:
    """A source of rows: its name, and how its rows are counted when a message names one."""

    name: str
    header: bool = False  # spreadsheets and editors count the header of a CSV file as row 1

    def row(self, index: int) -> str:
        """How to call the row at `index` (from 0) so that the user finds it."""
        return f"row {index + 2} (the header is row 1)" if self.header else f"row {index + 1}"

    def error(self, message: str) -> InputError:
        """The one-line error that begins with the name of the source."""
        return InputError(f"{self.name}: {message}")
