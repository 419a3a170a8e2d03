"""A lock for each model: some calls change it while they run, so that calls from several threads take turns."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["locked_model"]

# Not attributes of the models, which are copied and pickled.
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_GUARD = Lock()


@contextmanager
def locked_model(model: nn.Module) -> Iterator[None]:
    """Have a model to oneself: other threads that ask for it wait, the same thread may ask again."""
    with _GUARD:
        lock = _LOCKS.setdefault(model, RLock())
    with lock:
        yield
