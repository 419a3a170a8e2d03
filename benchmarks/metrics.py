"""ECE against torchmetrics in one run: time, memory beyond the input, and who is right.

python benchmarks/metrics.py [ROUNDS]    (needs torchmetrics, and numba for the column `fast`)

They take turns, so that whatever else the machine does falls on all of them. Times are medians: of the clock, and
of the processors, which a machine that is shared disturbs less.
"""

import importlib.util
import sys
import threading
import time
from statistics import median
from unittest import mock

import numpy as np
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from calmix.calibration import compiled
from calmix.metrics import ece

WAYS = ["fast", "plain", "torchmetrics"] if importlib.util.find_spec("numba") else ["plain", "torchmetrics"]


def measure(way, probs, labels):
    if way == "torchmetrics":
        return float(multiclass_calibration_error(probs, labels, num_classes=probs.shape[1], n_bins=15))
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


def main(rounds=9):
    every = torch.get_num_threads()
    print(f"torch {torch.__version__}, medians of {rounds} rounds")
    print(
        f"{'rows × classes':>16} {'mean conf.':>10} {'threads':>7} {'clock':>21} {'ratio':>6} {'processor':>9}"
        f" {'ratio':>6} {'MiB':>6} error"
    )
    for rows, classes, scale in [(10**7, 3, 2.0), (10**5, 1000, 12.0), (10**5, 1000, 3.0)]:
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
            turns = [{way: timed(way, *data) for way in WAYS} for _ in range(rounds)]
            for way in WAYS:
                clock, processor = (median(turn[way][i] for turn in turns) for i in (0, 1))
                clock_theirs, processor_theirs = (median(turn["torchmetrics"][i] for turn in turns) for i in (0, 1))
                print(
                    f"{rows:>9} × {classes:<4} {float(data[0].amax(1).mean()):>10.2f} {threads:>7} {way:>12}"
                    f" {clock:>8.4f} {clock_theirs / clock:>6.1f} {processor:>9.4f}"
                    f" {processor_theirs / processor:>6.1f} {mib[way]:>6.1f} {error[way]:.0e}",
                    flush=True,
                )
        torch.set_num_threads(every)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
