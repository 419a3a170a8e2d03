"""Words of the command line that more than one command takes."""

from collections.abc import Sequence
from enum import StrEnum

from calmix.errors import InputError

__all__ = ["Judged", "Record", "named_files", "pairs", "weights"]


class Judged(StrEnum):
    """The region of a data map that the AUM filter judges."""

    easy = "easy"
    ambiguous = "ambiguous"
    both = "both"


class Record(StrEnum):
    """Which logits training dynamics are made of."""

    training = "training"
    evaluation = "evaluation"


def pairs(words: Sequence[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Return KEY=VALUE words as a dictionary; `form` is what the option calls them."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.strip()):
            raise InputError(f"{option} takes {form}, not {word!r}")
        if key.strip() in found:
            raise InputError(f"{option} gives {key.strip()!r} twice")
        found[key.strip()] = value.strip()
    return found


def named_files(words: Sequence[str]) -> dict[str, str]:
    """Return NAME=FILE words as a dictionary; a name becomes part of file names, so it must be a plain one."""
    found = pairs(words, "--ood", "NAME=FILE")
    for name in found:
        if not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise InputError(f"--ood: {name!r} must be letters, digits, '-', '_' or '.' (it names a file of figures)")
    return found


def weights(words: str | None) -> str | dict[str, float] | None:
    """Return `balanced` or a weight per label."""
    if words is None or "=" not in words:
        return words
    try:
        return {name: float(value) for name, value in pairs(words.split(","), "--class-weights").items()}
    except ValueError:
        raise InputError(f"--class-weights takes NAME=NUMBER,NAME=NUMBER, not {words!r}") from None
