"""Several processes record, and are guided by, what one does and is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from ranks import free_port
from runs import assert_same_dynamics, recorded

import calmix
from calmix.training import survey, train

# Where the processes find `tiny` and this very calmix.
PLACES = [str(Path(tiny.__file__).parent), str(Path(calmix.__file__).parents[1])]

SETTINGS: dict[str, Any] = {"epochs": 2, "lr": 1e-2, "select": "none", "seed": 3, "batch_size": 8}
RUNS: dict[str, dict[str, Any]] = {
    "erm": {},
    "online": {"recipe": "tdmixup", "online": True},
    "two": {"recipe": "aum-saliency"},
    # Processes draw their own λ: without mixing, what is remembered and found must be that of one process.
    "set": {"recipe": "aum-saliency", "options": {"search": "set", "alpha": 0}, "online": True, "epochs": 3},
    "evaluation": {"record": "evaluation"},
}


def run_all(model: Path, out: Path) -> None:
    """Map, and train each of `RUNS` on, 27 rows, whose last batch has 3: what each process is started for."""
    settings: dict[str, Any] = {"epochs": 2, "lr": 1e-2, "batch_size": 8}
    survey(tiny.examples(27), model=str(model), out=out / "map", filtered=True, **settings)
    for name, run in RUNS.items():
        train(tiny.examples(27), dev=tiny.examples(11, seed=1), model=model, out=out / name, **SETTINGS | run)


@pytest.mark.slow
def test_two_processes_record_what_one_does(calm: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PLACES), "ACCELERATE_USE_CPU": "true"}
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    command = [sys.executable, "-m", *launcher, __file__, str(calm), str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run_all(calm, tmp_path / "one")
    one, two = (recorded(tmp_path / name / "erm") for name in ("one", "two"))
    assert two.observations.tolist() == [2] * 27
    assert_same_dynamics(one, two, rtol=1e-4, atol=1e-4)
    ways = [recorded(tmp_path / name / "evaluation") for name in ("one", "two")]
    assert ways[1].recorded_on == "evaluation pass"
    assert_same_dynamics(*ways, rtol=1e-4, atol=1e-4)
    sets = [json.loads((tmp_path / name / "set" / "metrics.json").read_text()) for name in ("one", "two")]
    assert sets[0]["epochs"][-1]["partners"] == sets[1]["epochs"][-1]["partners"]
    assert_same_dynamics(*(recorded(tmp_path / name / "set") for name in ("one", "two")), rtol=1e-4, atol=1e-4)
    for name in ("online", "two"):
        assert recorded(tmp_path / "two" / name).epochs == 2
    assert (tmp_path / "two" / "two" / "dynamics" / "datamap.parquet").is_file()
    maps = [recorded(tmp_path / name / "map") for name in ("one", "two")]
    assert_same_dynamics(*maps, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), Path(sys.argv[2]))
