"""A study on several processes: of this machine, or of a Ray cluster. Each makes runs as a single one would."""

import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import torch

from calmix.errors import InputError
from calmix.processors import chosen, processors, share
from calmix.study.conducting import Order, Prepared, prepare
from calmix.study.fitting import needed_by, share_of, workers_for
from calmix.study.working import State, state_of, work

__all__ = ["conduct_on_ray", "conduct_with_workers", "fitting_workers"]

# Seconds between two looks at where the study stands.
_LOOK = 0.5
# How often Ray begins again what a lost node or worker was doing.
_RETRIES = 3
# Seconds in which a cluster is to answer.
_CONNECT = 10.0
# Seconds in which the nodes of a cluster say how large their GPUs are.
_ANSWER = 60.0

OnState = Callable[[State], None]
OnNote = Callable[[str], None]


def fitting_workers(prepared: Prepared) -> int:
    """Return how many processes of this machine can make the missing runs on its GPU at once; 1 without a GPU."""
    if not torch.cuda.is_available():
        return 1
    missing = [g for g in prepared.plan.groups if not all(prepared.storage.finished(spec.key) for spec in g)]
    free, _ = torch.cuda.mem_get_info()
    return min(workers_for(missing, prepared.library, free), processors())


def conduct_with_workers(
    prepared: Prepared, workers: int, *, minutes: float | None = None, on_state: OnState | None = None
) -> State:
    """Make the missing runs with so many processes of this machine, and return where the study then stands.

    They share nothing but the folder: a run is held by one of them, and taken over should that one die.
    """
    if workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    context = multiprocessing.get_context("spawn")
    threads = torch.get_num_threads() if chosen() else share(workers)
    processes = [
        context.Process(target=_worker, args=(prepared.order, minutes, threads), daemon=True) for _ in range(workers)
    ]
    try:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            next(process for process in processes if process.is_alive()).join(_LOOK)
            if on_state is not None:
                on_state(state_of(prepared.plan, prepared.storage))
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()  # which saves what it is at, as Ctrl-C does
        for process in processes:
            if process.pid is not None:
                process.join()
    return state_of(prepared.plan, prepared.storage)


def _worker(order: Order, minutes: float | None, threads: int) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, stop)
    Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    mine = prepare(order)
    try:
        work(mine.plan, mine.storage, mine.library, until=until)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # the disk is full: the runs stay to be made
        print(f"calmix: a worker stopped: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _end_with(parent: Any) -> None:
    """Stop this process when that one is gone, so that a command that was killed leaves nobody working behind it."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def conduct_on_ray(
    prepared: Prepared,
    *,
    address: str | None = None,
    gpus: float | None = None,
    cpus: float = 1.0,
    minutes: float | None = None,
    on_state: OnState | None = None,
    on_note: OnNote | None = None,
) -> State:
    """Make the missing runs on a Ray cluster and return where the study then stands.

    Runs that differ only in their seed are one task, which waits for the runs it builds on; Ray decides where and
    when, and begins again what a lost node was doing. `gpus` and `cpus` are what a task asks for: with 0.25 GPUs,
    four share one. Without `gpus`, a task asks for the share of the cluster's smallest GPU that its memory is
    estimated to be. Without `address`, the cluster that RAY_ADDRESS names is taken, or else one that runs on this
    machine, or else one of this machine alone is started. The folders of runs and data must be the same on every node.
    """
    try:
        import ray
    except ImportError:
        raise InputError("--on ray: Ray is not installed; pip install calmix[study]") from None
    if gpus is not None and not (0 <= gpus <= 1 or (gpus > 1 and gpus.is_integer())):
        raise InputError(f"--gpus must be a share of a GPU, or a whole number of them, not {gpus:g}")
    if not 0 <= cpus < math.inf:
        raise InputError(f"--cpus must be a number from 0, not {cpus:g}")
    ours = not ray.is_initialized()
    if ours:
        _check_reachable(address)
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"--address {address}: no Ray cluster answers there ({error})") from None
    try:
        _check_room(ray, gpus or 0.0, cpus, on_note, grows=address is not None or "RAY_ADDRESS" in os.environ)
        shares = _shares(ray, prepared, gpus)
        if gpus is None and on_note is not None and any(shares):
            counted = ", ".join(f"{share:g} for {count}" for share, count in sorted(Counter(shares).items()))
            on_note(f"GPUs per task, by the memory it is estimated to need: {counted} (--gpus gives all the same)")
        # Made with its GPUs, not given them later: so Ray ends a process with its task, and what it held is free.
        tasks = {gpu: ray.remote(num_cpus=cpus, num_gpus=gpu, max_retries=_RETRIES)(_task) for gpu in {*shares}}
        until = None if minutes is None else time.time() + 60 * minutes
        waiting: dict[str, Any] = {}
        for group, share in zip(prepared.plan.groups, shares, strict=True):
            before = {waiting[needed.group] for spec in group for needed in spec.needs.values()}
            keys = [spec.key for spec in group]
            waiting[group[0].group] = tasks[share].remote(prepared.order, keys, until, cpus, *before)
        left = list(waiting.values())
        while left:
            done, left = ray.wait(left, timeout=_LOOK)
            for reference in done:
                _settle(ray, reference)
            if on_state is not None:
                on_state(state_of(prepared.plan, prepared.storage))
    finally:
        if ours:
            ray.shutdown()
    return state_of(prepared.plan, prepared.storage)


def _check_reachable(address: str | None) -> None:
    """Refuse a cluster where nothing listens: Ray itself would try for minutes."""
    option, told = ("--address", address) if address is not None else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS", ""))
    host, colon, port = told.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # `auto`, or something that Ray will know
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"{option} {told}: no Ray cluster answers there ({error})") from None


def _check_room(ray: Any, gpus: float, cpus: float, on_note: OnNote | None, *, grows: bool) -> None:
    """Refuse what no node of a cluster has; say so where the cluster may grow, since Ray waits for it."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(has.get("GPU", 0.0) >= gpus and has.get("CPU", 0.0) >= cpus for has in nodes):
        return
    wanted = f"no node of the cluster has {gpus:g} GPUs and {cpus:g} CPUs" if gpus else f"no node has {cpus:g} CPUs"
    if not grows:
        raise InputError(f"{wanted} to give to a run: ask for less (--gpus, --cpus)")
    if on_note is not None:
        on_note(f"{wanted} now: Ray waits until one does")


def _shares(ray: Any, prepared: Prepared, gpus: float | None) -> list[float]:
    """Return the GPUs to ask for, for each group of runs: those that were said, or what it is estimated to need."""
    groups = prepared.plan.groups
    if gpus is not None or not ray.cluster_resources().get("GPU"):
        return [gpus or 0.0] * len(groups)
    memory = _smallest_gpu(ray)
    return [share_of(needed_by(group, prepared.library), memory) for group in groups]


def _smallest_gpu(ray: Any) -> int | None:
    """Return the memory of the cluster's smallest GPU, in bytes; None unless every node with one says it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    ask = ray.remote(num_cpus=0, num_gpus=0.01, max_calls=1)(_memory_of_gpu)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    asked = [ask.options(scheduling_strategy=OnNode(node, soft=False)).remote() for node in nodes]
    try:
        told: list[int] = ray.get(asked, timeout=_ANSWER)
    except ray.exceptions.RayError:  # all of it is in use, or a node was lost
        for reference in asked:
            ray.cancel(reference, force=True)
        return None
    return min(told, default=0) or None


def _memory_of_gpu() -> int:
    """Return the memory of the smallest GPU that this process sees, in bytes; 0 if there is none."""
    seen = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return min((int(torch.cuda.get_device_properties(k).total_memory) for k in seen), default=0)


def _settle(ray: Any, reference: Any) -> None:
    """Look at how a task ended: a worker lost more often than it is begun again leaves its runs open."""
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, InputError | OSError) else error from None
    except ray.exceptions.RayError:
        return


def _task(order: Order, keys: list[str], until: float | None, cpus: float, *_before: Any) -> None:
    """Make some runs of a study, in a process of the cluster."""
    torch.set_num_threads(max(1, int(cpus)))
    if order.place is not None and order.place.is_dir():
        os.chdir(order.place)  # a cluster's processes are where it was started
    mine = _prepared(order)
    rest = None if until is None else time.monotonic() + until - time.time()
    work(mine.plan, mine.storage, mine.library, until=rest, only=set(keys))


@lru_cache(maxsize=2)
def _prepared(order: Order) -> Prepared:
    """Return the study, read once by each process."""
    for place in (order.study_file, order.data):
        if place is not None and not Path(place).exists():
            raise InputError(f"{place}: is not there on this node: studies on Ray need folders that all nodes share")
    return prepare(order)
