"""A study on several processes."""

import json
import re
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calmix import processors
from calmix.errors import InputError
from calmix.study import spreading
from calmix.study.conducting import Order, conduct, outcome, prepare
from calmix.study.spreading import conduct_on_ray, conduct_with_workers

# Dies once, as a machine would that loses its power, and then trains plainly.
DYING = """
import os, signal
from pathlib import Path
from calmix.recipes import erm
from dataclasses import replace

def recipe():
    def die(examples):
        died = Path(__file__).with_name("died")
        if not died.exists():
            died.write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)
        return examples
    return replace(erm(), prepare=die)
"""


def _metrics(prepared: Any) -> dict[str, Any]:
    found = {}
    for key in prepared.plan.runs:
        metrics = json.loads((prepared.storage.folder(key) / "metrics.json").read_text())
        found[key] = {split: figures["before"] for split, figures in metrics["splits"].items()}
    return found


@pytest.mark.slow
def test_workers_share_the_runs_and_come_to_the_same_figures(ready: Any) -> None:
    alone, shared = ready(out="alone"), ready(out="shared")
    conduct(alone)
    states: list[Any] = []
    state = conduct_with_workers(shared, 2, on_state=states.append)
    assert (state.done, state.failed) == (4, 0)
    assert states
    assert _metrics(shared) == _metrics(alone)


@pytest.mark.slow
def test_a_worker_that_dies_leaves_its_run_to_the_other(written: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    methods = f'[[method]]\nname = "dying"\nrecipe = "{tmp_path / "dying.py"}:recipe"\n'
    prepared = prepare(Order(written(methods), tmp_path / "out", data=data))
    assert conduct_with_workers(prepared, 2).done == 2
    assert (tmp_path / "died").exists()


# Calls, and waits for an answer.
WAITING = """
import socket
from dataclasses import replace
from pathlib import Path
from calmix.recipes import erm

def recipe():
    def wait(examples):
        with socket.create_connection(("127.0.0.1", int(Path(__file__).with_name("port").read_text()))) as line:
            line.recv(1)
        return examples
    return replace(erm(), prepare=wait)
"""


@pytest.mark.slow
def test_workers_of_a_command_that_is_killed_end_with_it(written: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    methods = "".join(
        f'[[method]]\nname = "m{k}"\nrecipe = "{tmp_path / "waiting.py"}:recipe"\ntraining = {{ lr = 0.0{k} }}\n'
        for k in (1, 2)
    )
    words = ["study", written(methods), "--out", tmp_path / "out", "--data", data, "--workers", 2]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
        command = subprocess.Popen([sys.executable, "-m", "calmix", *map(str, words)], stderr=subprocess.DEVNULL)
        try:
            lines = [server.accept()[0] for _ in range(2)]
        finally:
            command.kill()
            command.wait()
    for line in lines:
        with line:
            line.settimeout(60)
            assert line.recv(1) == b""  # hung up
    assert prepare(Order(tmp_path / "study.toml", tmp_path / "out", data=data)).storage.failed == set()


def test_there_is_at_least_one_worker(ready: Any) -> None:
    with pytest.raises(InputError, match="--workers must be at least 1"):
        conduct_with_workers(ready(), 0)


class Idle:
    """In place of multiprocessing and of the processes it starts: these end at once."""

    def __init__(self, **given: Any) -> None:
        self.given, self.started, self.pid = given, [], None

    def get_context(self, _: str) -> "Idle":
        return self

    def Process(self, **given: Any) -> "Idle":
        self.started.append(given["args"][-1])
        return Idle(**given)

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


@pytest.mark.parametrize(("chosen", "each"), [(False, 2), (True, 5)])
def test_workers_share_the_processors_unless_threads_were_chosen(
    ready: Any, monkeypatch: pytest.MonkeyPatch, chosen: bool, each: int
) -> None:
    idle = Idle()
    monkeypatch.setattr(spreading, "multiprocessing", idle)
    monkeypatch.setattr(spreading, "chosen", lambda: chosen)
    monkeypatch.setattr(processors, "processors", lambda: 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    conduct_with_workers(ready(), 3)
    assert idle.started == [each] * 3


@pytest.mark.parametrize(("free", "cores", "many"), [(80, 16, 2), (80, 1, 1), (1, 16, 1)])
def test_as_many_workers_as_fit_on_the_gpu(
    ready: Any, monkeypatch: pytest.MonkeyPatch, free: int, cores: int, many: int
) -> None:
    prepared = ready()  # two groups of runs
    assert spreading.fitting_workers(prepared) == 1  # there is no GPU here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * 2**30, 80 * 2**30))
    monkeypatch.setattr(spreading, "processors", lambda: cores)
    assert spreading.fitting_workers(prepared) == many
    monkeypatch.setattr(type(prepared.storage), "finished", lambda *_: True)
    assert spreading.fitting_workers(prepared) == 1  # nothing is left to be made


@pytest.mark.parametrize(
    ("resources", "gpus", "memory", "shares"),
    [
        ({"CPU": 8.0}, None, None, [0.0, 0.0]),  # no GPU in the cluster
        ({"CPU": 8.0, "GPU": 2.0}, None, 100, [0.125, 0.125]),
        ({"CPU": 8.0, "GPU": 2.0}, None, 1, [1.0, 1.0]),
        ({"CPU": 8.0, "GPU": 2.0}, None, None, [1.0, 1.0]),  # nobody says how large it is
        ({"CPU": 8.0, "GPU": 2.0}, 0.3, 100, [0.3, 0.3]),
        ({"CPU": 8.0, "GPU": 2.0}, 0.0, 100, [0.0, 0.0]),
    ],
)
def test_a_task_asks_for_what_was_said_or_for_the_share_it_should_need(
    ready: Any, monkeypatch: pytest.MonkeyPatch, resources: Any, gpus: Any, memory: Any, shares: list[float]
) -> None:
    monkeypatch.setattr(spreading, "_smallest_gpu", lambda _: None if memory is None else memory * 2**30)
    cluster = SimpleNamespace(cluster_resources=lambda: resources)
    assert spreading._shares(cluster, ready(), gpus) == shares


@pytest.mark.parametrize(("gpus", "cpus"), [(-1.0, 1.0), (1.5, 1.0), (float("nan"), 1.0), (None, -1.0)])
def test_what_ray_could_not_give_is_refused(ready: Any, gpus: Any, cpus: float) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"^--[gc]pus must be "):
        conduct_on_ray(ready(), gpus=gpus, cpus=cpus)


@pytest.mark.parametrize("option", ["--address", "RAY_ADDRESS"])
@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}", "127.0.0.1:99999"])
def test_a_cluster_where_nothing_listens_is_told_at_once(
    ready: Any, monkeypatch: pytest.MonkeyPatch, option: str, form: str
) -> None:
    pytest.importorskip("ray")
    with socket.socket() as held:  # a port that nobody listens at
        held.bind(("127.0.0.1", 0))
        address = form.format(held.getsockname()[1])
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=f"^{option} {re.escape(address)}: no Ray cluster answers there"):
            conduct_on_ray(ready(), address=address if option == "--address" else None)


@pytest.mark.parametrize(
    ("gpus", "cpus", "words"),
    [(1, 1, ""), (0.5, 4, ""), (0, 16, ""), (2, 1, "has 2 GPUs and 1 CPUs"), (1, 16, "has 1 GPUs"), (0, 64, "64 CPUs")],
)
def test_what_no_node_has_is_refused_unless_the_cluster_may_grow(gpus: float, cpus: float, words: str) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 16.0}},
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    cluster, notes = SimpleNamespace(nodes=lambda: nodes), []
    spreading._check_room(cluster, gpus, cpus, notes.append, grows=True)
    assert [words in note and note.endswith("Ray waits until one does") for note in notes] == ([True] if words else [])
    with pytest.raises(InputError, match=f"^no node .*{words}.* ask for less") if words else nullcontext():
        spreading._check_room(cluster, gpus, cpus, notes.append, grows=False)


def test_the_smallest_gpu_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spreading._memory_of_gpu() == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    about = [SimpleNamespace(total_memory=80), SimpleNamespace(total_memory=24)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", about.__getitem__)
    assert spreading._memory_of_gpu() == 24


@pytest.fixture(scope="module")
def cluster() -> Any:
    """A Ray cluster of two nodes, on this machine."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow
def test_a_cluster_makes_a_study_and_begins_again_what_a_lost_worker_did(
    cluster: Any, written: Any, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    methods = '[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "tdmixup"\n'
    methods += f'[[method]]\nname = "dying"\nrecipe = "{tmp_path / "dying.py"}:recipe"\n'
    prepared = prepare(Order(written(methods), tmp_path / "out", data=data))
    states: list[Any] = []
    state = conduct_on_ray(prepared, on_state=states.append)
    assert (state.done, state.failed, state.open) == (6, 0, 0)
    assert (tmp_path / "died").exists()
    assert len(outcome(prepared).rows) == 3 * 2 * 3 * 2


@pytest.mark.slow
def test_names_in_the_file_begin_where_the_command_was_given(
    cluster: Any, written: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("from calmix.recipes import erm as recipe\n")
    file = written('[[method]]\nname = "own"\nrecipe = "own.py:recipe"\n', head="seeds = 1")
    model = next(line.partition('"')[2].rstrip('"]') for line in file.read_text().splitlines() if "models" in line)
    (tmp_path / "model").symlink_to(model)
    file.write_text(file.read_text().replace(model, "model"))
    monkeypatch.chdir(tmp_path)
    prepared = prepare(Order(Path("study.toml"), Path("out"), data=data))
    assert conduct_on_ray(prepared).done == 1


@pytest.mark.slow
def test_a_cluster_begins_nothing_when_the_time_is_up(cluster: Any, ready: Any) -> None:
    assert conduct_on_ray(ready(), minutes=0).open == 4


# Waits on the second node until that is gone, and trains plainly elsewhere.
LINGERING = """
import os, signal
from dataclasses import replace
from pathlib import Path
from calmix.recipes import erm

def recipe():
    def linger(examples):
        import ray
        here = Path(__file__).with_name("node")
        if os.environ.get("RAY_NODE_ID", ray.get_runtime_context().get_node_id()) == here.read_text():
            here.with_name("met").write_text("")
            signal.pause()
        return examples
    return replace(erm(), prepare=linger)
"""


@pytest.mark.slow
def test_runs_of_a_node_that_is_lost_are_made_by_another(
    cluster: Any, written: Any, data: Path, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1)
    (tmp_path / "node").write_text(node.node_id)
    (tmp_path / "lingering.py").write_text(LINGERING)
    methods = "".join(
        f'[[method]]\nname = "m{k}"\nrecipe = "{tmp_path / "lingering.py"}:recipe"\ntraining = {{ lr = 0.0{k} }}\n'
        for k in (1, 2, 3, 4)
    )
    prepared = prepare(Order(written(methods, head="seeds = 1"), tmp_path / "out", data=data))
    lost: list[bool] = []

    def watch(_state: Any) -> None:
        if not lost and (tmp_path / "met").exists():
            lost.append(True)
            cluster.remove_node(node)

    state = conduct_on_ray(prepared, on_state=watch)
    assert lost
    assert (state.done, state.failed, state.open) == (4, 0, 0)


# Writes down how much of a GPU it was given, and to which process.
GIVEN = """
import os
from pathlib import Path
from calmix.recipes import erm
from dataclasses import replace

def recipe():
    def note(examples):
        import ray
        given = ray.get_runtime_context().get_assigned_resources()
        Path(__file__).with_name("given").write_text(str(given.get("GPU", 0.0)))
        Path(__file__).with_name(f"by-{os.getpid()}").write_text("")
        return examples
    return replace(erm(), prepare=note)
"""


@pytest.mark.slow
def test_runs_on_a_cluster_are_given_the_share_of_a_gpu_that_they_should_need(
    cluster: Any, written: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    node = cluster.add_node(num_cpus=1, num_gpus=1)
    (tmp_path / "given.py").write_text(GIVEN)
    methods = f'[[method]]\nname = "given"\nrecipe = "{tmp_path / "given.py"}:recipe"\n'
    file = written(methods, head="seeds = 1")
    notes: list[str] = []

    def given(out: str, **asked: Any) -> float:
        prepared = prepare(Order(file, tmp_path / out, data=data))
        assert conduct_on_ray(prepared, on_note=notes.append, **asked).done == 1
        return float((tmp_path / "given").read_text())

    try:
        assert spreading._smallest_gpu(ray) is None  # the node has but the word for one
        assert given("whole") == 1.0
        monkeypatch.setattr(spreading, "_smallest_gpu", lambda _: 40 * 2**30)
        assert given("share") == 0.125
        assert notes[-1].startswith("GPUs per task, by the memory it is estimated to need: 0.125 for 1 ")
        told = len(notes)
        assert given("said", gpus=0.5) == 0.5
        assert len(notes) == told
        # A process ends with its task: what it held of the GPU is free for the next.
        assert len(list(tmp_path.glob("by-*"))) == 3
    finally:
        cluster.remove_node(node)
