"""What may be done to the predictions of a trained network: one temperature, or one for each input by its distance."""

from collections.abc import Callable, Sequence

import numpy as np
from default_reading import DISTANCES, Array, Said, Sets, log_softmax
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

# As in calmix.models.cooling and calmix.training.distancing.
NEAREST_AND_FARTHEST = (-3.0, 4.0)
SPREAD, HEARD, ERRORS, LEAST_DEV = 0.05, 1000, 3.0, 100
SPOILT = ("mask", "replace", "shuffle", "mixed")

Correction = Callable[[Sets], Callable[[Said], Array]]
"""Sets to fit on (dev and its spoilt copies) → probabilities of any other."""


def plain(_fit: Sets) -> Callable[[Said], Array]:
    return lambda said: np.exp(log_softmax(said.logits))


def scaled(logits: Array, labels: NDArray[np.int64]) -> float:
    """Return the temperature of lowest NLL, as `Temperature.fit` does but in numpy: it is asked for a million times."""
    gaps = logits - logits.max(1, keepdims=True)
    gold = gaps[np.arange(len(labels)), labels].mean()
    low, high, beta = 0.01, 100.0, 1.0
    for _ in range(30):
        weights = np.exp(beta * gaps)
        weights /= weights.sum(1, keepdims=True)
        first = (weights * gaps).sum(1)
        slope, bend = first.mean() - gold, ((weights * gaps**2).sum(1) - first**2).mean()
        low, high = (low, beta) if slope > 0 else (beta, high)
        following = beta - slope / max(bend, 1e-12)
        following = following if low < following < high else (low * high) ** 0.5
        if abs(following - beta) < 1e-6 * beta:
            break
        beta = following
    return 1 / beta


def temperature(fit: Sets) -> Callable[[Said], Array]:
    found = scaled(fit["dev"].logits, fit["dev"].labels)
    return lambda said: np.exp(log_softmax(said.logits / found))


def fixed(column: int, slope: float) -> Correction:
    """Return a correction whose logarithm of temperature rises by `slope` per deviation."""

    def correction(fit: Sets) -> Callable[[Said], Array]:
        def cooled(said: Said) -> Array:
            rise = slope * np.clip(said.far[:, column], *NEAREST_AND_FARTHEST)
            out: Array = said.logits / np.exp(rise)[:, None]
            return out

        level = scaled(cooled(fit["dev"]), fit["dev"].labels)
        return lambda said: np.exp(log_softmax(cooled(said) / level))

    return correction


def fitted(columns: Sequence[int], spoilt: Sequence[str]) -> Correction:
    """Return a correction whose slopes, 0 or above, are fitted on dev and spoilt copies of it; its level on dev."""

    def correction(fit: Sets) -> Callable[[Said], Array]:
        used = [fit["dev"], *(fit[name] for name in spoilt)]
        logits, far, targets = (
            np.concatenate([getattr(s, what) for s in used]) for what in ("logits", "far", "targets")
        )
        rows = np.concatenate([np.full(len(s.logits), 1 / len(s.logits)) for s in used])
        rise = np.clip(far[:, list(columns)], *NEAREST_AND_FARTHEST)

        def loss(at: Array) -> tuple[float, Array]:
            log_t = at[0] + rise @ at[1:]
            cold = logits / np.exp(log_t)[:, None]
            logs = log_softmax(cold)
            # d/d(log T) of −Σ t·log p is Σ (t − p)·z/T.
            slope = ((targets - np.exp(logs)) * cold).sum(1) * rows
            return float(-((targets * logs).sum(1) * rows).sum()), np.concatenate([[slope.sum()], rise.T @ slope])

        bounds = [(-4, 4)] + [(0, 2)] * len(columns)
        found = minimize(loss, np.zeros(1 + len(columns)), jac=True, method="L-BFGS-B", bounds=bounds).x

        def cooled(said: Said) -> Array:
            log_t = np.clip(said.far[:, list(columns)], *NEAREST_AND_FARTHEST) @ found[1:]
            out: Array = said.logits / np.exp(log_t)[:, None]
            return out

        level = scaled(cooled(fit["dev"]), fit["dev"].labels)
        return lambda said: np.exp(log_softmax(cooled(said) / level))

    return correction


def near(columns: Sequence[int], expected: float, also: float = 0.0) -> Correction:
    """Return a correction whose first slope is fitted on dev, near what is expected; any other is fixed."""

    def correction(fit: Sets) -> Callable[[Said], Array]:
        dev = fit["dev"]

        def cooled(said: Said, slope: float) -> Array:
            reach = np.clip(said.far[:, list(columns)], *NEAREST_AND_FARTHEST)
            out: Array = said.logits / np.exp(reach @ np.array([slope, *[also] * (len(columns) - 1)]))[:, None]
            return out

        def cost(slope: float) -> float:
            cold = cooled(dev, slope)
            logs = log_softmax(cold / scaled(cold, dev.labels))[np.arange(len(cold)), dev.labels]
            return float(-min(len(cold), HEARD) * logs.mean() + ((slope - expected) / SPREAD) ** 2 / 2)

        slope = minimize_scalar(cost, bounds=(0, 0.5), method="bounded", options={"xatol": 0.005}).x
        level = scaled(cooled(dev, slope), dev.labels)
        return lambda said: np.exp(log_softmax(cooled(said, slope) / level))

    return correction


def beyond_guessing(dev: Said) -> float:
    """Return by how many standard errors a network, with a temperature, beats guessing on dev by NLL."""
    labels, rows = dev.labels, np.arange(len(dev.labels))
    logs = log_softmax(dev.logits / scaled(dev.logits, labels))[rows, labels]
    classes = dev.logits.shape[1]
    shares = np.full(classes, 1 / classes) if dev.choices else np.bincount(labels, minlength=classes) / len(labels)
    gain = logs - np.log(shares[labels])
    return float(gain.mean() / max(gain.std(), 1e-12) * np.sqrt(len(labels)))


def auto(fit: Sets) -> Callable[[Said], Array]:
    """What `calmix train` does: `near` with 0.1 for the distance at the head, or the temperature alone."""
    tells = beyond_guessing(fit["dev"]) > ERRORS
    return near([1], 0.1)(fit) if tells else temperature(fit)


CORRECTIONS: dict[str, Correction] = {
    "none": plain,
    "TS": temperature,
    "auto": auto,
    **{f"{DISTANCES[c]} {slope:g} for all": fixed(c, slope) for c in range(5) for slope in (0.1, 0.2)},
    **{f"{DISTANCES[c]} about {slope:g}": near([c], slope) for c in range(2) for slope in (0.1, 0.2, 0.3)},
    **{f"{DISTANCES[c]} fitted on spoilt dev": fitted([c], SPOILT) for c in range(5)},
    "mahalanobis-head about 0.1, mahalanobis-middle 0.05": near([1, 3], 0.1, 0.05),
    "mahalanobis-head about 0.2, mahalanobis-middle 0.05": near([1, 3], 0.2, 0.05),
    "all but energy fitted on spoilt dev": fitted(range(4), SPOILT),
}
