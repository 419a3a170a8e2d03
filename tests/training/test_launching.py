"""Several processes: the same weights as one, each batch shared between them, and one of them writes."""

import atexit
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from accelerate import Accelerator, PartialState
from ranks import free_port, together
from safetensors.torch import load_file
from torch.distributed import HashStore, TCPStore

import calmix
from calmix.errors import InputError
from calmix.mixing import RECIPES
from calmix.models import load
from calmix.training import Progress, loop, train
from calmix.training.launching import (
    _gain_of_bf16,
    _meeting,
    accelerator_for,
    from_main,
    named_trackers,
    precision_for,
    processes,
    unwrap,
)

# 27 rows in batches of 8 end in one of 3, 25 in one of 1: fewer rows than processes.
RUNS: list[dict[str, Any]] = [
    {"rows": 27, "batch_size": 8},
    {"rows": 25, "batch_size": 8, "accumulate": 2, "class_weights": "balanced"},
    {"rows": 24, "batch_size": 1, "epochs": 1, "test": 1},
    *({"rows": 9, "batch_size": 4, "epochs": 1, "recipe": name} for name in RECIPES if name != "back-translation"),
    {"rows": 9, "batch_size": 4, "epochs": 1, "recipe": "distil", "cache_teacher": False},
]


def settings(run: dict[str, Any], calm: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"epochs": 2, "lr": 1e-2, "select": "none", "seed": 3, "model": calm}
    options |= {"dev": tiny.examples(11, seed=1)} | run
    if "test" in options:
        options["test"] = tiny.examples(3, seed=2).take(range(options["test"]))
    options["train"] = tiny.examples(options.pop("rows"))
    if options.get("recipe") == "distil":
        options["teacher"] = calm
    return options


def run_all(calm: Path, out: Path) -> list[dict[str, Any]]:
    """Train everything in `RUNS` one after the other: what each process is started for."""
    found = []
    for number, run in enumerate(RUNS):
        options = settings(run, calm)
        found.append(train(options.pop("train"), out=out / str(number), **options).metrics)
    return found


def run_until(calm: Path, out: Path, step: int) -> None:
    """Train one run that saves after every epoch, and fail at `step`."""

    def fail(progress: Progress) -> None:
        if progress.step == step:
            raise RuntimeError("killed")

    loop._POLL = 0.0
    options = settings({"rows": 27, "batch_size": 8, "epochs": 3, "checkpoint_epochs": 1}, calm)
    train(options.pop("train"), out=out, on_progress=fail, **options)


def launched(calm: Path, out: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Start this very file in two processes."""
    environment = {
        **os.environ,
        # Where the processes find `tiny` and this very calmix.
        "PYTHONPATH": os.pathsep.join([str(Path(tiny.__file__).parent), str(Path(calmix.__file__).parents[1])]),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "ACCELERATE_USE_CPU": "true",
    }
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    command = [sys.executable, "-m", *launcher, __file__, str(calm), str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


@pytest.mark.slow
def test_two_processes_give_the_weights_and_predictions_of_one(calm: Path, tmp_path: Path) -> None:
    done = launched(calm, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-3000:]
    alone = run_all(calm, tmp_path / "one")
    reported = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("two-process-*.json"))]
    assert len(reported) == 2
    assert reported[0] == reported[1]
    for number, run in enumerate(RUNS):
        one, two = tmp_path / "one" / str(number), tmp_path / "two" / str(number)
        assert sorted(p.name for p in one.rglob("*")) == sorted(p.name for p in two.rglob("*"))
        assert reported[0][number]["epochs"][-1]["step"] == alone[number]["epochs"][-1]["step"]
        if "recipe" in run:  # they pair inside a process's share of the batch: only erm is the same to the bit
            continue
        a, b = load_file(one / "model" / "model.safetensors"), load_file(two / "model" / "model.safetensors")
        for name in a:
            # Attention does not depend on the keys' bias: its gradient is rounding alone, which Adam blows up.
            if not name.endswith("key.bias"):
                torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5)
        for entry, other in zip(alone[number]["epochs"], reported[0][number]["epochs"], strict=True):
            assert entry["epoch"] == other["epoch"]
            if entry["epoch"] > 0:  # nothing is lost before training
                assert entry["loss"] == pytest.approx(other["loss"], rel=1e-5)
        rows = [pq.read_table(folder / "predictions-dev.parquet") for folder in (one, two)]
        assert rows[0]["id"] == rows[1]["id"]
        np.testing.assert_allclose(rows[0]["p_animal"].to_numpy(), rows[1]["p_animal"].to_numpy(), atol=1e-4)
        examples = tiny.examples(11, seed=1)
        ours = np.stack([rows[1][f"p_{n}"].to_numpy() for n in tiny.LABELS], 1)
        np.testing.assert_allclose(load(two).probabilities(examples), ours, atol=1e-5)


@pytest.mark.slow
def test_two_processes_that_were_killed_go_on_to_the_same_weights(calm: Path, tmp_path: Path) -> None:
    done = launched(calm, tmp_path / "whole", "0")
    assert done.returncode == 0, done.stderr[-6000:]
    assert launched(calm, tmp_path / "run", "10").returncode != 0
    assert (tmp_path / "run" / "checkpoints" / "step-00000008").is_dir()
    done = launched(calm, tmp_path / "run", "0")
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("model/model.safetensors", "predictions-dev.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_what_is_wrong_ends_every_process_at_once(calm: Path, tmp_path: Path) -> None:
    (tmp_path / "two" / "0").mkdir(parents=True)
    (tmp_path / "two" / "0" / "thesis.tex").write_text("")
    done = launched(calm, tmp_path / "two")
    assert done.returncode != 0
    assert done.stderr.count("is not empty and holds no run of ours") >= 1
    assert [p.name for p in (tmp_path / "two" / "0").iterdir()] == ["thesis.tex"]


def test_processes_that_were_started_again_do_not_find_the_addresses_of_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = TCPStore("127.0.0.1", 0, 1, is_master=True)  # as torchrun keeps one over all attempts
    kept.set("0", "where nobody is")
    told = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(kept.port)}.items():
        monkeypatch.setenv(name, value)
    assert _meeting() == {}
    for attempt in ("1", "2"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        place = _meeting()
        assert (place["rank"], place["world_size"]) == (0, 1)
        assert not place["store"].check(["0"])
        place["store"].set("0", "here")
        assert _meeting()["store"].get("0") == b"here"  # as another process of the same attempt finds it


def ears() -> int:
    """Return on how many epolls this process listens: gloo has one for a group, and closes it when its threads ended.

    Threads themselves are listed for a moment after they ended, and have no name when they have just begun.
    """
    found = 0
    for place in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found += os.readlink(f"/proc/self/fd/{place}") == "anon_inode:[eventpoll]"
    return found


def until_the_end(work: Callable[[], object]) -> list[bool]:
    """Return whether a group lives after `work`, and after what it has left Python to do at a process's end.

    The last is whether torch still knows it, which it may not while it lives.
    """
    ends: list[Callable[[], object]] = []
    atexit.register = lambda end, *args: ends.append(partial(end, *args))  # in a process of its own
    # Torch imports this when it first wraps a model, with the group there is then as a default of its functions.
    sys.modules.pop("torch.distributed.nn.functional", None)
    before = ears()
    work()
    importlib.import_module("torch.distributed.nn.functional")
    lives = ears() > before
    for end in reversed(ends):
        end()
    return [lives, ears() > before, torch.distributed.is_initialized()]


on_linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is open is told by Linux")


# What its threads would still hold when Python is being taken down, they would abort the process over.
@on_linux
@pytest.mark.parametrize("sharded", ["false", "true"])
def test_nothing_of_a_group_of_processes_outlives_its_end_and_that_is_before_pythons(
    calm: Path, tmp_path: Path, sharded: str
) -> None:
    def work() -> None:
        os.environ["ACCELERATE_USE_FSDP"] = sharded
        options = settings({"rows": 9, "batch_size": 4, "epochs": 1}, calm)
        train(options.pop("train"), out=tmp_path / "run", **options)

    assert together(2, lambda: until_the_end(work)) == [[True, False, False]] * 2


@on_linux
def test_a_group_that_was_there_before_is_not_ours_to_end() -> None:
    def work() -> None:
        torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        processes()

    assert together(1, lambda: until_the_end(work)) == [[True, True, True]]


def test_alone_what_main_makes_is_what_is_made() -> None:
    assert from_main(lambda: 3) == 3
    with pytest.raises(InputError, match="bad"):
        from_main(lambda: (_ for _ in ()).throw(InputError("bad")))


def test_the_precision_is_that_of_the_run_not_of_the_one_before(tmp_path: Path) -> None:
    assert accelerator_for("bf16", (), tmp_path).mixed_precision == "bf16"
    assert accelerator_for("fp32", (), tmp_path).mixed_precision == "no"
    assert precision_for("bf16") == "bf16"
    assert precision_for("auto") == "fp32"  # as the environment of the tests says


@pytest.mark.skipif(torch.cuda.is_available(), reason="about processors")
@pytest.mark.parametrize(("gain", "expected"), [(0.07, "fp32"), (1.1, "fp32"), (1.9, "bf16")])
def test_a_processor_computes_in_what_it_is_faster_with(
    gain: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    monkeypatch.setattr("calmix.training.launching._gain_of_bf16", lambda: gain)
    assert precision_for("auto") == expected
    assert precision_for("fp32") == "fp32"


@pytest.mark.parametrize(("major", "expected"), [(7, "fp32"), (8, "bf16"), (9, "bf16")])
def test_a_gpu_that_only_emulates_bf16_computes_in_float32(
    major: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    monkeypatch.setattr("calmix.training.launching._on_cpu", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(major=major))
    assert precision_for("auto") == expected


def test_what_accelerate_was_told_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert precision_for("auto") == "bf16"


def test_the_gain_is_a_ratio_of_times() -> None:
    assert 0 < _gain_of_bf16() < 1000


def test_a_model_that_was_wrapped_computes_as_before(calm: Path, tmp_path: Path) -> None:
    classifier = load(calm)
    inputs = classifier.tokenizer(["the cat saw rain"], return_tensors="pt")
    before = classifier.model(**inputs).logits
    forward = classifier.model.forward
    accelerator: Accelerator = accelerator_for("bf16", (), tmp_path)
    accelerator.prepare_model(classifier.model)
    assert not torch.equal(classifier.model(**inputs).logits, before)
    unwrap(classifier.model)
    assert classifier.model.forward == forward
    assert torch.equal(classifier.model(**inputs).logits, before)


def test_trackers_are_checked_before_anything_is_done() -> None:
    assert named_trackers(("tensorboard",)) == named_trackers("tensorboard") == ("tensorboard",)
    with pytest.raises(InputError, match="there is no such tracker"):
        named_trackers(("paper",))


if __name__ == "__main__":
    model, target = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        run_until(model, target, int(sys.argv[3]))
    else:
        metrics = run_all(model, target)
        name = f"{target.name}-process-{PartialState().process_index}.json"
        target.with_name(name).write_text(json.dumps(metrics))
