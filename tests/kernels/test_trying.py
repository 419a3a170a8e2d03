"""Kernels are tried before they are used."""

import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest
import torch

from calmix.kernels import Agrees, near, tried, try_together, trying, usable
from calmix.kernels.trying import quietly


def test_a_compiler_that_fails_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    complain = [sys.executable, "-c", "import sys; print('fatal error', file=sys.stderr)"]
    with quietly():
        subprocess.run(complain, check=True)
    assert capfd.readouterr().err == ""
    subprocess.run(complain, check=True)
    assert capfd.readouterr().err == "fatal error\n"


def test_what_was_found_out_is_not_tried_again() -> None:
    tries: list[torch.device] = []

    def agrees(device: torch.device) -> bool:
        tries.append(device)
        return len(tries) == 1

    here, there = torch.device("cpu"), torch.device("meta")
    assert [usable(agrees, here), usable(agrees, here), usable(agrees, there)] == [True, True, False]
    assert tries == [here, there]


def test_nothing_is_tried_during_a_capture_and_what_was_refused_there_is_tried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[torch.device] = []

    def agrees(device: torch.device) -> bool:
        tries.append(device)
        return True

    here = torch.device("cpu")
    monkeypatch.setattr(trying, "capturing", lambda: True)
    assert not usable(agrees, here)
    assert tries == []
    monkeypatch.setattr(trying, "capturing", lambda: False)
    assert usable(agrees, here)
    monkeypatch.setattr(trying, "capturing", lambda: True)
    assert usable(agrees, here)


def test_what_was_found_out_about_the_gpu_at_hand_is_not_tried_again_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    checks: list[Agrees] = [lambda device: bool(tries.append(device)) or True for _ in range(2)]
    try_together(checks, torch.device("cuda"))
    assert all(usable(check, torch.device("cuda", 1)) for check in checks)
    assert tries == [torch.device("cuda", 1)] * 2


def test_kernels_that_cannot_be_compiled_are_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def agrees(_device: torch.device) -> bool:
        raise OSError("no compiler")

    with caplog.at_level("INFO"):
        assert not tried(agrees, torch.device("cpu"))
    assert "Triton's kernels are not used: no compiler" in caplog.text


def test_several_are_tried_at_the_same_time_and_each_is_found_out_about(capfd: pytest.CaptureFixture[str]) -> None:
    together = threading.Barrier(3, timeout=60)
    tries: list[str] = []

    def check(name: str, outcome: bool | None) -> Agrees:
        def agrees(_device: torch.device) -> bool:
            together.wait()
            tries.append(name)
            if outcome is None:
                raise ValueError("wrong")
            return outcome

        return agrees

    checks = [check("good", True), check("bad", False), check("ugly", None)]
    device = torch.device("cpu")
    try_together(checks, device)
    try_together(checks, device)
    assert [usable(agrees, device) for agrees in checks] == [True, False, False]
    assert sorted(tries) == ["bad", "good", "ugly"]
    print("heard again", file=sys.stderr)
    assert capfd.readouterr().err == "heard again\n"


@pytest.mark.parametrize(("other", "same"), [(1.0, True), (1.02, True), (1.05, False), (float("nan"), False)])
def test_outcomes_are_the_same_but_for_rounding(other: float, same: bool) -> None:
    assert near(torch.full((9,), other), torch.ones(9)) == same
