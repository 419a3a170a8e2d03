"""Ctrl-C during training: the step under way is finished, so that what is saved is whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "interrupts_held"]


class Interrupted(KeyboardInterrupt):
    """Training that was stopped from outside; its message says what became of it."""


@contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Hold back the first Ctrl-C inside the block and yield what tells whether there was one; a second goes through.

    Only in the main thread, where signals arrive, and only where Python's own handler is in place: whoever has
    set another knows why. SIGTERM is held where a handler asks for the same (the command line sets one): it is all
    that reaches a background job, for which shells have Ctrl-C ignored.
    """
    asked = threading.Event()

    def hold(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, hold)
        if callable(signal.getsignal(signal.SIGTERM)):
            before[signal.SIGTERM] = signal.signal(signal.SIGTERM, hold)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
