"""Ctrl-C during training: the step under way is finished, so that what is saved is whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "interrupts_held"]


class Interrupted(KeyboardInterrupt):
    """Training that was stopped from outside; its message says what became of it."""


@contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Hold back the first Ctrl-C inside the block and yield what tells whether there was one; a second goes through.

    Only in the main thread, where signals arrive, and only where Python's own handler is in place: whoever has
    set another knows why.
    """
    asked = threading.Event()

    def hold(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, hold)
    try:
        yield asked.is_set
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
