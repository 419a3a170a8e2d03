"""How many processors this process may use, which in a container are fewer than the machine has."""

import os
import sys
from pathlib import Path

__all__ = ["chosen", "limit_threads", "processors", "share"]

# Where files of the system are looked for.
_ROOT = Path("/")
# What says how many threads torch is to start, and the first of it other libraries too.
_SAYING = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# What `limit_threads` has put there, which is nobody's choice.
_PUT: dict[str, str] = {}


def processors() -> int:
    """Return how many processors this process may use: at most those it may run on, and what containers allow.

    A quota (`docker --cpus`, limits of Kubernetes, systemd's CPUQuota) is that of the process's control group or of
    one above it, version 1 or 2, rounded up.
    """
    limits = (_whole(limit) for folder in _groups() for limit in _limits(folder))
    return max(1, min([len(_runnable()), *(limit for limit in limits if limit is not None)]))


def share(workers: int = 1) -> int:
    """Return how many processors each of so many workers has to itself, beside the processes launched with this one."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's, and accelerate's
    launched = int(local) if local.isdecimal() else 1
    return max(1, processors() // (max(1, launched) * workers))


def chosen() -> bool:
    """Return whether somebody chose how many threads torch starts: in the environment, or by `torch.set_num_threads`.

    torch does not tell who set its number: one that it comes to by itself on this machine counts as nobody's.
    """
    if any(os.environ.get(name, "") not in ("", _PUT.get(name)) for name in _SAYING):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and torch.get_num_threads() not in {share(), *_of_itself()}


def limit_threads() -> None:
    """Have torch start no more threads than this process's share of the processors, unless a number was chosen.

    Before torch is loaded, which takes seconds, the environment tells it, and whatever else computes in threads.
    """
    if chosen():
        return
    torch, least = sys.modules.get("torch"), share()
    if torch is None:
        if least < min(_of_itself()):
            os.environ["OMP_NUM_THREADS"] = _PUT["OMP_NUM_THREADS"] = str(least)
    elif torch.get_num_threads() > least:
        torch.set_num_threads(least)


def _of_itself() -> set[int]:
    """Return what torch may come to by itself, which depends on its build: cores or processors, free to it or all."""
    numbers, topology = _runnable(), _ROOT / "sys/devices/system/cpu"
    cores = {_text(topology / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in numbers}
    return {len(cores), len(numbers), os.cpu_count() or 1}


def _runnable() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):  # not on every system
        return set(range(os.cpu_count() or 1))


def _groups() -> set[Path]:
    """Return the folders of the control groups that this process is in, from its own up to the root.

    Inside a container its own may be named as it is outside: then only the root is there, and is the container's.
    """
    mounted, found = _ROOT / "sys/fs/cgroup", set()
    for line in ("0::/", "1:cpu:/", *_text(_ROOT / "proc/self/cgroup").splitlines()):
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        for mount in (mounted / "cpu", mounted / kinds) if kinds else (mounted, mounted / "unified"):
            own = mount / path.strip("/")
            found |= {folder for folder in (own, *own.parents) if folder.is_relative_to(mount)}
    return found


def _limits(folder: Path) -> tuple[str, str]:
    """Return a control group's quota and period as version 2 and as version 1 have them, as far as they are there."""
    older = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _text(folder / "cpu.max"), " ".join(older)


def _whole(limit: str) -> int | None:
    """Return a quota in whole processors, rounded up; None where there is none."""
    try:
        quota, period = (int(word) for word in limit.split())
    except ValueError:  # `max`, or no such file
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""
