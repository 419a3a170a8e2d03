"""Fitting a temperature: ours, scipy's bounded search and scikit-learn's, in one run.

python benchmarks/recalibration.py    (needs scikit-learn 1.8 or later)
"""

import sys
import time

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.calibration import _TemperatureScaling

from calmix.recalibration import Temperature


def fastest(call, times):
    best, value = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        value = call()
        best = min(best, time.perf_counter() - start)
    return best, float(value)


def data(rows, classes, factor):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(rows, classes)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # a draw from the softmax
    return logits * factor, labels


def by_scipy(logits, labels):
    rows = np.arange(len(labels))

    def loss(log_beta):
        return -log_softmax(np.exp(log_beta) * logits, 1)[rows, labels].mean()

    return np.exp(-minimize_scalar(loss, bounds=(-10, 10), method="bounded", options={"xatol": 1e-6}).x)


def by_sklearn(logits, labels):
    return 1 / _TemperatureScaling().fit(logits, labels).beta_


def main():
    every = torch.get_num_threads()
    print(
        f"{'rows × classes':>16} {'true T':>7} {'threads':>7} {'calmix':>9} {'scipy':>9} {'ratio':>6}"
        f" {'sklearn':>9} {'ratio':>6}  T found by each"
    )
    for rows, classes in [(10**3, 10), (10**5, 10), (10**4, 100)]:
        for factor in (0.05, 1.0, 3.0, 20.0):
            logits, labels = data(rows, classes, factor)
            scipy, by_one = fastest(lambda z=logits, y=labels: by_scipy(z, y), 3)
            sklearn, by_other = fastest(lambda z=logits, y=labels: by_sklearn(z, y), 3)
            for threads in sorted({1, every}):
                torch.set_num_threads(threads)
                ours, found = fastest(lambda z=logits, y=labels: Temperature.fit(z, y).temperature, 7)
                print(
                    f"{rows:>9} × {classes:<4} {factor:>7g} {threads:>7} {ours:>8.4f}s {scipy:>8.4f}s"
                    f" {scipy / ours:>6.1f} {sklearn:>8.4f}s {sklearn / ours:>6.1f}"
                    f"  {found:.6f} {by_one:.6f} {by_other:.6f}",
                    flush=True,
                )
            torch.set_num_threads(every)


if __name__ == "__main__":
    sys.exit(main())
