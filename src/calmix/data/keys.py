"""What a row says, as keys: ids made from content, and texts folded so that copies meet."""

import unicodedata
from collections.abc import Collection, Iterable
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["content_ids", "fold", "folded_keys", "groups_of", "same_label", "spelt_like"]


def _parts(table: pa.Table) -> list[tuple[str, ...]]:
    """The texts of each row: its text, then its second text or its choices; the key of an image."""
    if "image_key" in table.column_names:
        return list(zip(table["image_key"].to_pylist(), strict=True))
    texts = table["text"].to_pylist()
    if "text_b" in table.column_names:
        return list(zip(texts, table["text_b"].to_pylist(), strict=True))
    if "choices" in table.column_names:
        return [(text, *cells) for text, cells in zip(texts, table["choices"].to_pylist(), strict=True)]
    return list(zip(texts, strict=True))


def _hash(parts: tuple[str, ...]) -> str:
    # Lengths first: ("ab", "c") and ("a", "bc") differ.
    if len(parts) == 1:
        joined = f"{len(parts[0])}:{parts[0]}"
    else:
        joined = f"{','.join(str(len(part)) for part in parts)}:{''.join(parts)}"
    return blake2b(joined.encode("utf-8"), digest_size=8).hexdigest()


def content_ids(table: pa.Table) -> list[str]:
    """An id for each row that depends on its texts alone: 16 hex digits, then -2, -3, … for repeats."""
    seen: dict[str, int] = {}
    ids = []
    for key in map(_hash, _parts(table)):
        count = seen[key] = seen.get(key, 0) + 1
        ids.append(key if count == 1 else f"{key}-{count}")
    return ids


def fold(text: str) -> str:
    """The text without differences of case, Unicode composition and white space."""
    if text.isascii():
        return " ".join(text.lower().split())
    composed = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return " ".join(composed.split())


def same_label(name: str) -> str:
    """What two names of labels share if and only if they differ in case, blanks and Unicode composition alone."""
    return "".join(fold(name).split())


def spelt_like(names: Iterable[str], known: Collection[str]) -> list[str]:
    """The names that are none of those known, and differ from one of them in case or blanks alone: sorted."""
    same = set(map(same_label, known))
    return sorted(name for name in set(names) - set(known) if same_label(name) in same)


def folded_keys(table: pa.Table) -> list[str]:
    """A key for each row; rows have the same key if and only if their texts are the same once folded."""
    return [_hash(tuple(map(fold, parts))) for parts in _parts(table)]


def groups_of(keys: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """The number of each row's group, and the key that the rows of each group share."""
    numbers: dict[str, int] = {}
    group = [numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(group, dtype=np.int64), list(numbers)
