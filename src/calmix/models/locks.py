"""Who may use a model meanwhile: calls that leave it as it is together, those that change it for their time alone."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, get_ident
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["exclusive", "shared"]


class _Turns:
    """Which threads use a model."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.inside: Counter[int] = Counter()  # how often each thread shares it
        self.owner: int | None = None
        self.depth = 0  # how often its owner has it to itself
        self.waiting = 0  # threads that want it to themselves

    @contextmanager
    def shared(self) -> Iterator[None]:
        me = get_ident()
        with self.changed:
            # Who waits to be alone goes first, but waits for those who are inside: they may ask again.
            if not self.inside[me] and self.owner != me:
                self.changed.wait_for(lambda: self.owner is None and not self.waiting)
            self.inside[me] += 1
        try:
            yield
        finally:
            with self.changed:
                self.inside[me] -= 1
                self.inside += Counter()  # without those who have left
                self.changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        me = get_ident()
        with self.changed:
            self.waiting += 1
            try:
                self.changed.wait_for(lambda: self.owner in (None, me) and not self.inside.keys() - {me})
                self.owner = me
                self.depth += 1
            finally:
                self.waiting -= 1
                self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.depth -= 1
                self.owner = me if self.depth else None
                self.changed.notify_all()


# Not attributes of the models, which are copied and pickled.
_TURNS: WeakKeyDictionary[nn.Module, _Turns] = WeakKeyDictionary()
_GUARD = Lock()


@contextmanager
def shared(model: nn.Module) -> Iterator[None]:
    """Use a model together with other threads, and with none that changes it."""
    with _turns_of(model).shared():
        yield


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Have a model to oneself, to change it for the time being; the same thread may use it inside the block."""
    with _turns_of(model).exclusive():
        yield


def _turns_of(model: nn.Module) -> _Turns:
    with _GUARD:
        if model not in _TURNS:
            _TURNS[model] = _Turns()
        return _TURNS[model]
