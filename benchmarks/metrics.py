"""ECE against torchmetrics and netcal in one run: time, memory beyond the input, and who is right.

python benchmarks/metrics.py --json out.json    (needs torchmetrics; netcal and, for `fast`, numba where they are there)

They take turns, so that whatever else the machine does falls on all of them. Times are medians: of the clock, and
of the processors, which a machine that is shared disturbs less. Ratios are how many times faster than torchmetrics.
"""

import argparse
import importlib.util
import json
import threading
import time
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np
import torch
from common import processor
from torchmetrics.functional.classification import multiclass_calibration_error

from calmix.calibration import compiled
from calmix.metrics import ece

NEEDS = {"fast": "numba", "plain": "calmix", "torchmetrics": "torchmetrics", "netcal": "netcal"}
WAYS = [way for way, package in NEEDS.items() if importlib.util.find_spec(package)]
SIZES = [(10**7, 3, 2.0), (10**5, 1000, 12.0), (10**5, 1000, 3.0)]
"""Rows, classes, and how sharp the predictions are."""


def measure(way, probs, labels):
    if way == "torchmetrics":
        return float(multiclass_calibration_error(probs, labels, num_classes=probs.shape[1], n_bins=15))
    if way == "netcal":
        from netcal.metrics import ECE

        return float(ECE(15).measure(probs.numpy(), labels.numpy()))
    # What is worth compiled code: everything, or nothing as without numba.
    with mock.patch.object(compiled, "_WORTH", 0 if way == "fast" else float("inf")):
        return ece(probs, labels)


def timed(way, probs, labels):
    """Seconds by the clock and of the processors."""
    start, worked = time.perf_counter(), time.process_time()
    measure(way, probs, labels)
    return time.perf_counter() - start, time.process_time() - worked


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def peak(way, probs, labels):
    """MiB that the process grew by while it was measured."""
    before, highest, done = resident(), 0, threading.Event()

    def watch():
        nonlocal highest
        while not done.is_set():
            highest = max(highest, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    measure(way, probs, labels)
    done.set()
    watcher.join()
    return max(0, highest - before) / 2**20


def reference(probs, labels, bins=15):
    """ECE in float64 by numpy alone."""
    top, hit = probs.max(1).astype(np.float64), probs.argmax(1) == labels
    where = np.searchsorted(np.arange(1, bins) / bins, top)
    return np.abs(np.bincount(where, top - hit, bins)).sum() / len(top)


def predictions(rows, classes, scale):
    """Softmax of random logits, and labels drawn from it."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(rows, classes, generator=generator).mul_(scale).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows, for a quick look")
    parser.add_argument("--json")
    options = parser.parse_args()
    every = torch.get_num_threads()
    told = {"processor": processor(), "torch": torch.__version__, "rounds": options.rounds}
    print(", ".join(f"{name} {value}" for name, value in told.items()))
    print(
        f"{'rows × classes':>16} {'mean conf.':>10} {'threads':>7} {'clock':>21} {'ratio':>6} {'processor':>9}"
        f" {'ratio':>6} {'MiB':>6} error"
    )
    found = []
    for most, classes, scale in SIZES:
        rows = max(100, int(options.share * most))
        data = predictions(rows, classes, scale)
        truth = reference(data[0].numpy(), data[1].numpy())
        few = predictions(100, classes, scale)
        mib, error = {}, {}
        for way in WAYS:
            measure(way, *few)  # loads, and compiles where this was never done
            mib[way] = peak(way, *data)
            error[way] = abs(measure(way, *data) - truth)
        for threads in sorted({1, every}):
            torch.set_num_threads(threads)
            turns = [{way: timed(way, *data) for way in WAYS} for _ in range(options.rounds)]
            theirs = [median(turn["torchmetrics"][i] for turn in turns) for i in (0, 1)]
            for way in WAYS:
                mine = [median(turn[way][i] for turn in turns) for i in (0, 1)]
                line = {
                    "rows": rows,
                    "classes": classes,
                    "mean_confidence": float(data[0].amax(1).mean()),
                    "threads": threads,
                    "way": way,
                    "clock": mine[0],
                    "clock_ratio": theirs[0] / mine[0],
                    "processor": mine[1],
                    "processor_ratio": theirs[1] / max(mine[1], 1e-9),
                    "mib": mib[way],
                    "error": error[way],
                }
                found.append(line)
                print(
                    f"{rows:>9} × {classes:<4} {line['mean_confidence']:>10.2f} {threads:>7} {way:>12}"
                    f" {line['clock']:>8.4f} {line['clock_ratio']:>6.1f} {line['processor']:>9.4f}"
                    f" {line['processor_ratio']:>6.1f} {line['mib']:>6.1f} {line['error']:.0e}",
                    flush=True,
                )
        torch.set_num_threads(every)
    if options.json:
        Path(options.json).write_text(json.dumps({**told, "results": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
