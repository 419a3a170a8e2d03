"""The tool that shows what GPU memory the runs of a study take."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture
def tool(tool_called: Any) -> Any:
    return tool_called("memory")


def test_without_a_gpu_it_shows_the_estimates(tool: Any, written: Any, data: Path, capsys: Any) -> None:
    tool.main([str(written()), "--data", str(data)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["task"], row["recipe"], row["seeds"]) for row in rows] == [("tiny", "erm", 2), ("tiny", "tdmixup", 2)]
    assert all(row["estimate"] > 2**30 and row["share"] is row["taken"] is None for row in rows)


def test_with_one_it_shows_the_most_that_was_in_use_meanwhile(
    tool: Any, ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([80, 80, 70, 60, 75, 80, 80, 50, 80])
    alive = iter([True, True, True, False, True, True, False])
    process = SimpleNamespace(start=lambda: None, is_alive=lambda: next(alive), join=lambda _: None)
    monkeypatch.setattr(tool.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=lambda **_: process))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free) * 2**30, 80 * 2**30))
    rows = tool.measured(ready())
    assert [row["taken"] for row in rows] == [20 * 2**30, 30 * 2**30]
    assert {row["share"] for row in rows} == {0.125}
