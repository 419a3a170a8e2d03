"""Images that memory does not hold: decoded when they are needed, some batches ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calmix.processors import share

__all__ = ["Stream", "fits"]

# Batches decoded ahead of the one that is trained on.
_AHEAD = 4
# Of main memory, and of what is free on the GPU, the share that images may take.
_SHARE = 0.5

Rows = NDArray[np.int64]


def fits(size: int) -> bool:
    """Return whether so many bytes fit well into main memory, shared by the processes of this machine, and into what is
    free on the GPU."""
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / sharing
    if torch.cuda.is_available():
        room = min(room, torch.cuda.mem_get_info()[0])
    return size <= _SHARE * room


class Stream:
    """Decodes images in threads; `expect` tells it which will be asked for, so that it can begin before they are.

    Args:
        decode: row → its image, uint8 [height, width, channels], as all others.
    """

    def __init__(self, decode: Callable[[int], NDArray[np.uint8]]) -> None:
        self.decode, self.workers = decode, share()
        self.pool = ThreadPoolExecutor(self.workers)
        self.coming: Iterator[Rows] = iter(())
        self.ahead: deque[tuple[Rows, list[Future[NDArray[np.uint8]]]]] = deque()

    def expect(self, batches: Iterable[Rows]) -> None:
        """Begin to decode the first few of these batches; each that is taken has another begin."""
        for _, futures in self.ahead:
            for future in futures:
                future.cancel()
        self.coming = iter(batches)
        self.ahead.clear()
        for _ in range(_AHEAD):
            self._begin_next()

    def take(self, rows: Rows) -> Tensor:
        """Return the images of some rows, uint8 [rows, height, width, channels]: at once, if they were expected."""
        if not (self.ahead and np.array_equal(self.ahead[0][0], rows)):
            return _joined(self._begun(rows))
        _, futures = self.ahead.popleft()
        self._begin_next()
        return _joined(futures)

    def _begin_next(self) -> None:
        rows = next(self.coming, None)
        if rows is not None:
            self.ahead.append((rows, self._begun(rows)))

    def _begun(self, rows: Rows) -> list[Future[NDArray[np.uint8]]]:
        return [self.pool.submit(self._decoded, share) for share in np.array_split(rows, self.workers) if len(share)]

    def _decoded(self, rows: Rows) -> NDArray[np.uint8]:
        return np.stack([self.decode(int(row)) for row in rows])


def _joined(futures: list[Future[NDArray[np.uint8]]]) -> Tensor:
    return torch.from_numpy(np.concatenate([future.result() for future in futures]))
