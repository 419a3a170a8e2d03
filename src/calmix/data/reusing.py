"""What many runs or models in one process share, made once: networks, tokens, pixels, what teachers said, hashes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["reused", "reusing"]

T = TypeVar("T")

# The newest so many things of a kind are kept: a study goes through its tasks one after the other.
_MOST = 24

_KEPT: ContextVar[dict[str, OrderedDict[Hashable, Any]] | None] = ContextVar("kept", default=None)


@contextmanager
def reusing() -> Iterator[None]:
    """Inside the outermost such block, what `reused` makes is kept for those who ask again."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def reused(
    kind: str, key: Hashable, make: Callable[[], T], *, copied: Callable[[T], T] | None = None, most: int = _MOST
) -> T:
    """Return what `make` makes, or made before for this key; `copied` makes a copy of it that may be changed."""
    kept = _KEPT.get()
    if kept is None:
        return make()
    shelf: OrderedDict[Hashable, T] = kept.setdefault(kind, OrderedDict())
    if key not in shelf:
        shelf[key] = make()
        while len(shelf) > most:
            shelf.popitem(last=False)
    shelf.move_to_end(key)
    return shelf[key] if copied is None else copied(shelf[key])
