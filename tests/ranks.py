"""Several processes of one run, forked from a process that has everything imported: they find each other over gloo."""

import os
import pickle
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def free_port() -> int:
    """Return a port nobody listens on: fixed ones would meet those of other tests on the same machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def together(world: int, work: Callable[[], Any]) -> list[Any]:
    """Return what `work` returns in each of so many processes; what goes wrong in one is an AssertionError here."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:  # nothing of pytest may run here: whatever happens, the process ends
                try:
                    _rank(rank, world, port, work, Path(folder) / str(rank))
                finally:
                    os._exit(0)
            os.setpgid(child, children[0] if children else child)
            children.append(child)
        _end_together(children, [Path(folder) / str(rank) for rank in range(world)])
        files = {rank: Path(folder) / str(rank) for rank in range(world)}
        said = {rank: pickle.loads(file.read_bytes()) for rank, file in files.items() if file.is_file()}
        for rank, (kind, value) in said.items():  # what went wrong comes before who was ended for it
            assert kind == "done", f"process {rank} of {world}: {value}"
        for rank in range(world):
            assert rank in said, f"process {rank} of {world} died"
        return [said[rank][1] for rank in range(world)]


def _end_together(children: list[int], files: list[Path]) -> None:
    """Wait until all have ended; where one ends without being done, the others would wait for it: they are ended."""
    for _ in children:
        child, _ = os.waitpid(-children[0], 0)
        file = files[children.index(child)]
        if not file.is_file() or pickle.loads(file.read_bytes())[0] != "done":
            with suppress(ProcessLookupError):
                os.killpg(children[0], signal.SIGKILL)


def _rank(rank: int, world: int, port: int, work: Callable[[], Any], file: Path) -> None:
    from accelerate import PartialState
    from accelerate.state import AcceleratorState, GradientState

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    try:
        outcome = ("done", work())
    except BaseException:
        outcome = ("failed", traceback.format_exc())
    file.with_suffix(".part").write_bytes(pickle.dumps(outcome))
    file.with_suffix(".part").rename(file)
    if world > 1 and outcome[0] == "done":
        PartialState().destroy_process_group()
