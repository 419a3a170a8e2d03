"""Processors: what containers and affinity leave of the machine's, who shares them, and whose choice wins."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import calmix
from calmix import processors as module
from calmix.models import pixels
from calmix.models.pixels import Preparation, pack_images
from calmix.processors import chosen, limit_threads, processors, share

Machine = Callable[..., None]

# A version-2 container, a group in it, and version 1 under the names that its folder has on different systems.
QUOTAS: dict[str, tuple[dict[str, str], int]] = {
    "no control groups": ({}, 64),
    "version 2": ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
    "version 2, rounded up": ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
    "version 2, less than one": ({"sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
    "version 2, no quota": ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
    "version 2, more than there is": ({"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 64),
    "version 2, its own group": (
        {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/box/cpu.max": "300000 100000\n"},
        3,
    ),
    "version 2, a group above": (
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "500000 100000\n",
            "sys/fs/cgroup/cpu.max": "900000 100000\n",
        },
        5,
    ),
    "version 2, somebody else's group": (
        {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/other/cpu.max": "100000 100000\n"},
        64,
    ),
    "version 2 beside version 1": (
        {"proc/self/cgroup": "1:cpu:/\n0::/box\n", "sys/fs/cgroup/unified/box/cpu.max": "400000 100000\n"},
        4,
    ),
    "version 1": (
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
        3,
    ),
    "version 1, no quota": (
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
        64,
    ),
    "version 1, named from outside": (
        {
            "proc/self/cgroup": "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
        },
        4,
    ),
    "version 1, its own group": (
        {
            "proc/self/cgroup": "3:cpuacct,cpu:/slice/job\n",
            "sys/fs/cgroup/cpu/slice/job/cpu.cfs_quota_us": "700000\n",
            "sys/fs/cgroup/cpu/slice/job/cpu.cfs_period_us": "100000\n",
        },
        7,
    ),
    "version 1, no period": ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n"}, 64),
    "garbage": (
        {
            "proc/self/cgroup": "::\n\0\n0\n:cpu\n0::/../..\n0::/a\0b\n" + "x" * 9999,
            "sys/fs/cgroup/cpu.max": "\ufffd many\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0\n",
        },
        64,
    ),
    "endless numbers": ({"sys/fs/cgroup/cpu.max": f"{'9' * 9999} 1\n"}, 64),
    "a folder for a file": ({"sys/fs/cgroup/cpu.max/x": "", "proc/self/cgroup/x": ""}, 64),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Return `machine(files, affinity=64, torch_has=64)`: 64 processors, these files, nothing chosen."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def build(files: dict[str, str] | None = None, *, affinity: int = 64, torch_has: int = 64) -> None:
        for name, text in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        threads = [torch_has]
        monkeypatch.setattr(module, "_ROOT", tmp_path)
        monkeypatch.setattr(module, "_PUT", {})
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
        monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))

    return build


TWO = QUOTAS["version 2"][0]
# 64 processors of 32 cores, of which torch by itself starts as many threads as there are cores.
PAIRS = {f"sys/devices/system/cpu/cpu{k}/topology/thread_siblings_list": f"{k % 32},{k % 32 + 32}" for k in range(64)}


@pytest.mark.parametrize("case", QUOTAS)
def test_a_quota_is_read_from_every_group_the_process_is_in(machine: Machine, case: str) -> None:
    files, expected = QUOTAS[case]
    machine(files)
    assert processors() == expected


def test_the_fewer_of_affinity_and_quota(machine: Machine) -> None:
    machine(TWO, affinity=1)
    assert processors() == 1
    machine(TWO, affinity=5)
    assert processors() == 2


def test_systems_without_affinity_count_all(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors() == 1


@pytest.mark.parametrize(
    ("launched", "workers", "each"), [("", 1, 6), ("4", 1, 1), ("2", 3, 1), ("x", 2, 3), ("0", 9, 1)]
)
def test_processes_of_one_launch_share(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, launched: str, workers: int, each: int
) -> None:
    machine(affinity=6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", launched)
    assert share(workers) == each


@pytest.mark.parametrize(("files", "torch_has"), [(TWO, 64), (TWO | PAIRS, 32)])
def test_what_torch_took_by_itself_is_limited(machine: Machine, files: dict[str, str], torch_has: int) -> None:
    machine(files, torch_has=torch_has)
    limit_threads()
    assert torch.get_num_threads() == 2
    assert not chosen()
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("torch_has", [1, 3, 16])
def test_what_was_set_in_torch_stays(machine: Machine, torch_has: int) -> None:
    machine(TWO | PAIRS, torch_has=torch_has)
    assert chosen()
    limit_threads()
    assert torch.get_num_threads() == torch_has


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
@pytest.mark.parametrize("loaded", [True, False])
def test_what_the_environment_says_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str, loaded: bool
) -> None:
    machine(TWO)
    monkeypatch.setenv(name, "64")
    if not loaded:
        monkeypatch.delitem(sys.modules, "torch")
    limit_threads()
    assert chosen()
    assert torch.get_num_threads() == 64
    assert (os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS")).count("64") == 1


def test_a_torch_that_has_no_more_than_it_may_is_left_alone(machine: Machine) -> None:
    machine(PAIRS, torch_has=32)
    limit_threads()
    assert torch.get_num_threads() == 32


def test_before_torch_is_loaded_the_environment_says_it_and_nobody_chose_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(TWO)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delitem(sys.modules, "torch")
    limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert not chosen()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert chosen()


def test_a_machine_that_nobody_limits_has_nothing_in_its_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(PAIRS)
    monkeypatch.delitem(sys.modules, "torch")
    limit_threads()
    assert "OMP_NUM_THREADS" not in os.environ


# A command that is done before it would load torch, and how many threads a torch has that is loaded after it.
COMMAND = """
import sys
from pathlib import Path
from calmix import processors
from calmix.cli import main
processors._ROOT = Path(sys.argv[1])
try:
    main(["--version"])
except SystemExit:
    assert "torch" not in sys.modules
import torch
print(torch.get_num_threads())
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor leaves nothing to limit")
@pytest.mark.parametrize(("said", "threads"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)])
def test_a_command_limits_the_torch_that_it_loads(tmp_path: Path, said: dict[str, str], threads: int) -> None:
    quota = tmp_path / "sys/fs/cgroup/cpu.max"
    quota.parent.mkdir(parents=True)
    quota.write_text("100000 100000")
    free = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    free |= {"PYTHONPATH": str(Path(calmix.__file__).parents[1]), **said}
    command = [sys.executable, "-c", COMMAND, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=free, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(threads)


def test_images_are_the_same_whatever_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    how = Preparation(8, 8, (0.0,) * 3, (1.0,) * 3)
    found = []
    for count in (1, 7):
        monkeypatch.setattr(pixels, "share", lambda count=count: count)
        found.append(pack_images(tiny.images(150), how, stream=False).data.numpy())
    np.testing.assert_array_equal(*found)
