"""The benchmarks run, and one command gathers what they find."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
KEPT = {
    "training": "h200-training",
    "cpu": "cpu-training",
    "limits": "cpu-limits",
    "distillation": "h200-distillation",
    "prediction": "cpu-prediction",
    "images": "h200-images",
    "metrics": "cpu-metrics",
    "study": "cpu-study",
    "seeds": "h200-seeds",
    "commands": "h200-commands",
    "guided": "h200-guided",
    "growth": "cpu-growth",
}
"""Benchmark → the results of it that are kept."""


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import everything

    return everything


def kept(name: str) -> Any:
    return json.loads((ROOT / "results" / "speed" / f"{KEPT[name]}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KEPT)
def test_ratios_are_read_from_what_is_kept(everything: Any, name: str) -> None:
    ratios = list(everything.BENCHMARKS[name].ratios(kept(name)))
    assert ratios
    assert all(isinstance(ratio, float) and what != base for what, base, ratio in ratios)


def test_a_ratio_is_ours_over_theirs(everything: Any) -> None:
    found = {"device": "x", "Hugging Face Trainer": {"samples_per_second": 100.0}}
    found |= {name: {"samples_per_second": rate} for name, rate in (("plain torch loop", 200.0), ("erm", 1000.0))}
    found |= {"cls-mixup": {"samples_per_second": 900.0}}
    assert list(everything.of_training(found)) == [
        ("plain torch loop, samples/s", "Hugging Face Trainer", 2.0),
        ("erm, samples/s", "Hugging Face Trainer", 10.0),
        ("erm, samples/s", "plain torch loop", 5.0),
        ("cls-mixup, samples/s", "Hugging Face Trainer", 9.0),
        ("cls-mixup, samples/s", "plain torch loop", 4.5),
        ("cls-mixup, samples/s", "erm", 0.9),
    ]


@pytest.mark.slow
def test_one_command_runs_them_all(everything: Any, checkpoint: Any, tmp_path: Path) -> None:
    words = ["--quick", "--model", str(checkpoint("bert")), "--out", str(tmp_path / "speed")]
    command = [sys.executable, str(ROOT / "benchmarks" / "everything.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    here = [
        name for name, benchmark in everything.BENCHMARKS.items() if "cpu" in benchmark.where and not benchmark.needs
    ]
    assert {path.stem for path in (tmp_path / "speed").iterdir()} >= set(here)
    table = done.stdout.split("| measured | against | ratio |")[1]
    for what in (
        "erm, samples/s | plain torch loop, fp32",
        "aum-saliency, two runs",
        "teacher cached",
        "calmix predicts",
    ):
        assert what in table
