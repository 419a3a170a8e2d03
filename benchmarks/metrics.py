"""ECE against torchmetrics in one run: time, memory beyond the input, and who is right.

python benchmarks/metrics.py    (needs torchmetrics; prints our column alone without it)
"""

import sys
import threading
import time

import numpy as np
import torch

from calmix.metrics import ece

try:
    from torchmetrics.functional.classification import multiclass_calibration_error
except ImportError:
    multiclass_calibration_error = None


def fastest(call, times):
    best, value = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        value = call()
        best = min(best, time.perf_counter() - start)
    return best, float(value)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def peak(call):
    """MiB that the process grew by while `call` ran."""
    before, highest, done = resident(), 0, threading.Event()

    def watch():
        nonlocal highest
        while not done.is_set():
            highest = max(highest, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
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
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads available; best of 5 and of 3")
    print(
        f"{'rows × classes':>16} {'mean conf.':>10} {'threads':>7} {'calmix':>9} {'torchmetrics':>12} {'ratio':>6}"
        f" {'MiB':>6} {'MiB':>6} {'error':>9} {'error':>9}"
    )
    every = torch.get_num_threads()
    for rows, classes, scale in [(10**7, 3, 2.0), (10**5, 1000, 12.0), (10**5, 1000, 3.0)]:
        probs, labels = predictions(rows, classes, scale)
        truth = reference(probs.numpy(), labels.numpy())
        few = predictions(100, classes, scale)

        def ours(p=probs, y=labels):
            return ece(p, y)

        def theirs(p=probs, y=labels, k=classes):
            return multiclass_calibration_error(p, y, num_classes=k, n_bins=15)

        # Memory first, on a cold heap, once both libraries are loaded.
        ours(*few)
        mib = peak(ours)
        if multiclass_calibration_error is not None:
            theirs(*few)
            mib_theirs = peak(theirs)
        for threads in sorted({1, every}):
            torch.set_num_threads(threads)
            seconds, value = fastest(ours, 5)
            line = f"{rows:>9} × {classes:<4} {float(probs.amax(1).mean()):>10.2f} {threads:>7} {seconds:>8.4f}s"
            if multiclass_calibration_error is None:
                print(line, f"{mib:.1f} MiB, error {abs(value - truth):.0e}")
                continue
            other_seconds, other = fastest(theirs, 3)
            print(
                line,
                f"{other_seconds:>11.4f}s {other_seconds / seconds:>6.1f} {mib:>6.1f} {mib_theirs:>6.0f}"
                f" {abs(value - truth):>9.0e} {abs(other - truth):>9.0e}",
                flush=True,
            )
        torch.set_num_threads(every)


if __name__ == "__main__":
    sys.exit(main())
