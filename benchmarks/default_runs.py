"""Runs to choose the default from, and to judge it by: what each way to train says about dev, test and other domains.

    python benchmarks/default_runs.py --model minilm --data DATA --minutes 5 --out OUT

Several seeds are trained side by side. Of every run the epoch that is best by dev NLL after temperature is looked at,
as `calmix train` chooses it. Kept are logits in float16, and how far each sample lies from the training data in four
ways: everything that is done to predictions afterwards can then be tried without a GPU. Of other domains both the dev
sets (to choose by) and the test sets (to judge by) are kept.

With `--search` there are averages of the weights along the run as well, and spoilt copies of dev (tokens masked,
replaced, shuffled; pairs of texts mixed), for corrections that must not look at another domain; test sets of other
domains are then not touched.

Ways to train come in the order of what is wanted most; when the minutes are over, the rest is left out, and said. The
methods that need a map of the data take it from `erm`, which must come before them, and a student its teacher.
"""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from default_tasks import CONFIRMATION, DEVELOPMENT, Sizes, prepare
from default_training import MAPS, WAYS, Known, run
from numpy.typing import NDArray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--tasks", default=",".join(DEVELOPMENT), help=f"and {', '.join(CONFIRMATION)}")
    parser.add_argument("--ways", default=",".join(list(WAYS)[:9]))
    parser.add_argument("--search", action="store_true", help="averages of the weights and spoilt copies of dev too")
    parser.add_argument("--epochs", action="store_true", help="of plain runs, what each epoch says too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain-seeds", type=int, default=5, help="of erm, for an ensemble")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=10_000, help="training rows at most")
    parser.add_argument("--judged", type=int, default=1500, help="rows of test and other domains at most")
    parser.add_argument("--held", type=int, default=1000, help="dev rows at most")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    began = time.monotonic()
    asked.out.mkdir(parents=True, exist_ok=True)
    known, per_seed = Known(), dict[str, float]()
    log: dict[str, Any] = {"settings": {key: str(value) for key, value in vars(asked).items()}, "runs": [], "left": []}
    sizes = Sizes(asked.rows, asked.held, asked.judged, 400 if asked.search else 0)
    for way in asked.ways.split(","):
        for task in asked.tasks.split(","):
            count = asked.plain_seeds if way == MAPS else asked.seeds
            left = 60 * asked.minutes - (time.monotonic() - began)
            # As long as a seed took for this task at most, and a little more.
            if left < max(5.0, 1.1 * count * per_seed.get(task, 0.0)) or known.lacks(way, task):
                log["left"].append([way, task])
                continue
            prepared = prepare(asked.model, task, asked.data, sizes)
            start = time.monotonic()
            seeds = range(asked.first_seed, asked.first_seed + count)
            shares = () if not asked.search else (0.1, 0.25, 0.5) if way == MAPS else (0.25,)
            kept = {"shares": shares, "epochs": asked.epochs and way == MAPS}
            arrays, facts = run(prepared, task, asked.model, way, seeds, known, **kept)
            write(asked.out / f"{way}.{task}.npz", arrays)
            write(asked.out / f"labels.{task}.npz", {f"labels/{name}": each for name, each in prepared.labels.items()})
            seconds = time.monotonic() - start
            per_seed[task] = max(per_seed.get(task, 0.0), seconds / count)
            log["runs"].append({"way": way, "task": task, "seeds": count, "seconds": round(seconds, 2), **facts})
            (asked.out / "log.json").write_text(json.dumps(log, indent=1), encoding="utf-8")
            print(f"{time.monotonic() - began:6.1f} s  {way} on {task}: {seconds:.1f} s {facts}", flush=True)
            gc.collect()
    (asked.out / "log.json").write_text(json.dumps(log, indent=1), encoding="utf-8")
    print(f"left out: {log['left'] or 'nothing'}")


def write(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    part.rename(path)


if __name__ == "__main__":
    main()
