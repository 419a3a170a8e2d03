"""Where data came from, so that a message can name the place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from calmix.errors import InputError

__all__ = ["Origin", "closest", "listed", "shown"]


def shown(value: object, *, limit: int = 60) -> str:
    """A value from data on one printable line: quoted, control characters escaped, cut at `limit`."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit + 2 else text[:limit] + "…"


def listed(values: Iterable[object], *, limit: int = 20) -> str:
    """Values from data, comma-separated, the first `limit` of them."""
    values = list(values)
    rest = f" and {len(values) - limit} more" if len(values) > limit else ""
    return ", ".join(shown(value) for value in values[:limit]) + rest


def closest(name: str, known: Sequence[str], *, within: str = "") -> str:
    """`"; did you mean 'x'?"` when a known name resembles `name`, otherwise nothing; `within` comes before it."""
    folded = {other.casefold(): other for other in known}
    match = get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {shown(within + folded[match[0]])}?" if match else ""


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
