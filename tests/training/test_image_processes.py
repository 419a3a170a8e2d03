"""Two processes train on images: each its share, one model in the end."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from ranks import free_port
from runs import recorded

import calmix
from calmix.data import read_table
from calmix.training import train

# Where the processes find `tiny` and this very calmix.
PLACES = [str(Path(tiny.__file__).parent), str(Path(calmix.__file__).parents[1])]
SETTINGS: dict[str, Any] = {"epochs": 2, "optimizer": "sgd", "lr": 0.01, "select": "none", "seed": 3, "batch_size": 8}
# Without batch norm and augmentation, both of which are each process's own, two do what one does.
RUNS: dict[str, dict[str, Any]] = {
    "vit": {"augment": "none"},
    "vit, streamed": {"augment": "none", "stream": True},
    "convnet": {},
    "mixup": {"recipe": "input-mixup"},
}


def run_all(models: Path, out: Path) -> None:
    """Train each of `RUNS` on 27 images, whose last batch has 3: what each process is started for."""
    for name, run in RUNS.items():
        model = models / ("vit" if name.startswith("vit") else "convnet")
        train(tiny.images(27), dev=tiny.images(11, seed=1), model=model, out=out / name, **SETTINGS | run)


@pytest.mark.slow
def test_two_processes_train_on_images_as_one_does(tmp_path: Path) -> None:
    for name in ("vit", "convnet"):
        tiny.build_image(name, tmp_path / "models" / name)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PLACES), "ACCELERATE_USE_CPU": "true"}
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    command = [sys.executable, "-m", *launcher, __file__, str(tmp_path / "models"), str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run_all(tmp_path / "models", tmp_path / "one")

    def logits(which: str, name: str) -> Any:
        return np.array(read_table(tmp_path / which / name / "predictions-dev.parquet")["logits"].to_pylist())

    np.testing.assert_allclose(logits("two", "vit"), logits("one", "vit"), rtol=1e-3, atol=1e-4)
    # Each process decodes its share of every batch anew, and computes the same with it.
    np.testing.assert_array_equal(logits("two", "vit, streamed"), logits("two", "vit"))
    assert recorded(tmp_path / "two" / "vit").observations.tolist() == [2] * 27
    for name in RUNS:
        # What both predicted with is what was saved: running statistics were brought together.
        saved = calmix.load(tmp_path / "two" / name).logits(tiny.images(11, seed=1))
        np.testing.assert_allclose(saved.argmax(1), logits("two", name).argmax(1))
        scale = np.abs(logits("two", name)).max() / np.abs(saved).max()
        np.testing.assert_allclose(saved * scale, logits("two", name), rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), Path(sys.argv[2]))
