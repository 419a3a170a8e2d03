"""What was learnt from the runs of `default_runs.py`: ways to train × averages × corrections, before any is chosen.

    python benchmarks/default_choice.py OUT [OUT …] [--json FILE]

In domain, a choice is made on dev: corrections are fitted on one half of it and judged on the other, both ways round.
Out of domain it is made on the dev sets of other domains, one task left out at a time: what is best on average for the
others is what the task left out is given, so that no task's own other domain has a say in what it gets. Test rows in
domain are shown, and decide nothing.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

PER_DEVIATION = 8
SPOILT = ("mask", "replace", "shuffle", "mixed")
DISTANCES = ("neighbours-head", "mahalanobis-head", "neighbours-middle", "mahalanobis-middle", "energy")

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Said:
    """What a run says about a set: logits, distances, and targets [n, K]."""

    logits: Array
    far: Array
    targets: Array

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.targets.argmax(1)

    def take(self, rows: NDArray[Any]) -> "Said":
        return Said(self.logits[rows], self.far[rows], self.targets[rows])


Sets = dict[str, Said]
Correction = Callable[[Sets], Callable[[Said], Array]]
"""Sets to fit on (dev and its spoilt copies) → probabilities of any other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    runs = load(asked.folders)
    rows = judged(runs)
    show(rows)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def load(folders: Sequence[Path]) -> dict[tuple[str, str, str], dict[int, Sets]]:
    """Return the sets of each seed by (task, way, variant)."""
    found: dict[tuple[str, str, str], dict[int, Sets]] = defaultdict(lambda: defaultdict(dict))
    for folder in folders:
        for path in sorted(folder.glob("*.npz")):
            way, task = path.name.removesuffix(".npz").split(".")
            if way == "labels":
                continue
            labels, arrays = np.load(folder / f"labels.{task}.npz"), np.load(path)
            for key in arrays.files:
                seed, variant, *rest = key.split("/")
                if rest[-1] != "logits":
                    continue
                name, at = rest[0], f"{seed}/{variant}/{rest[0]}"
                logits = arrays[key].astype(np.float64)
                far = arrays[f"{at}/distances"].astype(np.float64) / PER_DEVIATION
                targets = np.eye(logits.shape[1])[labels[f"labels/{name}"]]
                if name == "mixed":
                    weight = arrays[f"{at}/weight"].astype(np.float64)[:, None]
                    targets = weight * targets + (1 - weight) * targets[arrays[f"{at}/partner"].astype(np.int64)]
                energy = -np.logaddexp.reduce(logits, axis=1)
                found[task, way, variant][int(seed)][name] = Said(logits, np.column_stack([far, energy]), targets)
    for seeds in found.values():
        for sets in seeds.values():
            usual = sets["dev"].far[:, 4]
            for name, said in sets.items():
                energy = (said.far[:, 4] - usual.mean()) / usual.std()
                sets[name] = Said(said.logits, np.column_stack([said.far[:, :4], energy]), said.targets)
    return {key: dict(value) for key, value in found.items()}


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


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


def fixed(column: int, slope: float, start: float = 0.0) -> Correction:
    """Return a correction whose logarithm of temperature rises by `slope` per deviation beyond `start`."""

    def correction(fit: Sets) -> Callable[[Said], Array]:
        def cooled(said: Said) -> Array:
            rise = slope * np.maximum(said.far[:, column] - start, 0)
            out: Array = said.logits / np.exp(rise)[:, None]
            return out

        level = scaled(cooled(fit["dev"]), fit["dev"].labels)
        return lambda said: np.exp(log_softmax(cooled(said) / level))

    return correction


def fitted(columns: Sequence[int], spoilt: Sequence[str], start: float = 0.0) -> Correction:
    """Return a correction whose slopes, 0 or above, are fitted on dev and spoilt copies of it; its level on dev."""

    def correction(fit: Sets) -> Callable[[Said], Array]:
        used = [fit["dev"], *(fit[name] for name in spoilt)]
        logits, far, targets = (
            np.concatenate([getattr(s, what) for s in used]) for what in ("logits", "far", "targets")
        )
        rows = np.concatenate([np.full(len(s.logits), 1 / len(s.logits)) for s in used])
        rise = np.maximum(far[:, list(columns)] - start, 0)

        def loss(at: Array) -> tuple[float, Array]:
            log_t = at[0] + rise @ at[1:]
            scaled = logits / np.exp(log_t)[:, None]
            logs = log_softmax(scaled)
            # d/d(log T) of −Σ t·log p is Σ (t − p)·z/T.
            slope = ((targets - np.exp(logs)) * scaled).sum(1) * rows
            return float(-((targets * logs).sum(1) * rows).sum()), np.concatenate([[slope.sum()], rise.T @ slope])

        bounds = [(-4, 4)] + [(0, 2)] * len(columns)
        found = minimize(loss, np.zeros(1 + len(columns)), jac=True, method="L-BFGS-B", bounds=bounds).x

        def cooled(said: Said) -> Array:
            log_t = np.maximum(said.far[:, list(columns)] - start, 0) @ found[1:]
            out: Array = said.logits / np.exp(log_t)[:, None]
            return out

        level = scaled(cooled(fit["dev"]), fit["dev"].labels)
        return lambda said: np.exp(log_softmax(cooled(said) / level))

    return correction


CORRECTIONS: dict[str, Correction] = {
    "none": plain,
    "TS": temperature,
    **{
        f"{DISTANCES[c]} {slope:g}{f' from {start:g}' if start else ''}": fixed(c, slope, start)
        for c in range(5)
        for slope in (0.05, 0.1, 0.2, 0.4)
        for start in (0.0,)
    },
    **{f"{DISTANCES[c]} fitted {'+'.join(s)}": fitted([c], s) for c in range(5) for s in [SPOILT]},
    "all fitted": fitted(range(5), SPOILT),
    "four fitted": fitted(range(4), SPOILT),
}


def figures(probs: Array, labels: NDArray[np.int64]) -> dict[str, float]:
    """Return what `calmix evaluate` calls so, in plain numpy: it is asked for a million times."""
    winner = probs.argmax(1)
    sure, hit = probs[np.arange(len(labels)), winner], (winner == labels).astype(np.float64)
    gold = probs[np.arange(len(labels)), labels]
    where = np.clip(np.ceil(15 * sure).astype(np.int64) - 1, 0, 14)
    gaps = np.bincount(where, weights=sure - hit, minlength=15)
    wrong = np.cumsum(1 - hit[np.argsort(-sure, kind="stable")]) / np.arange(1, len(labels) + 1)
    return {
        "accuracy": float(hit.mean()),
        "ece": float(np.abs(gaps).sum() / len(labels)),
        "nll": float(-np.log(gold).mean()),
        "brier": float((np.square(probs).sum(1) - 2 * gold + 1).mean()),
        "aurc": float(wrong.mean()),
        "confidence": float(sure.mean()),
    }


def crossed(sets: Sets, correction: Correction) -> dict[str, float]:
    """Return the figures of dev, each half corrected by what the other half (and its spoilt copies) says."""
    dev, order = sets["dev"], np.random.default_rng(0).permutation(len(sets["dev"].logits))
    probs = np.empty_like(dev.logits)
    for mine, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        probs[mine] = correction({**sets, "dev": dev.take(other)})(dev.take(mine))
    return figures(probs, dev.labels)


def ensemble(seeds: Mapping[int, Sets]) -> Sets:
    """Return the mean of several runs' probabilities, as logits."""
    first = next(iter(seeds.values()))
    return {
        name: Said(
            np.log(np.mean([np.exp(log_softmax(sets[name].logits)) for sets in seeds.values()], axis=0)),
            np.mean([sets[name].far for sets in seeds.values()], axis=0),
            said.targets,
        )
        for name, said in first.items()
        if name != "mixed"
    }


def judged(runs: Mapping[tuple[str, str, str], Mapping[int, Sets]]) -> list[dict[str, Any]]:
    """Return the figures of every task, way, average and correction: dev, test, and other domains' dev."""
    rows: list[dict[str, Any]] = []
    for (task, way, variant), seeds in runs.items():
        for seed, sets in seeds.items():
            for name, correction in CORRECTIONS.items():
                rows += _rows(task, way, variant, seed, name, sets, correction)
        if way == "erm" and len(seeds) >= 5:
            members = ensemble({seed: seeds[seed] for seed in list(seeds)[:5]})
            rows += _rows(task, "ensemble", variant, 0, "TS", members, temperature)
    return rows


def _rows(
    task: str, way: str, variant: str, seed: int, name: str, sets: Sets, correction: Correction
) -> list[dict[str, Any]]:
    about = {"task": task, "way": way, "variant": variant, "seed": seed, "correction": name}
    correct = correction(sets)
    found = [{**about, "data": "dev", **crossed(sets, correction)}]
    for data, said in sets.items():
        if data == "test" or data.startswith("ood-"):
            found.append({**about, "data": data.split("-")[0], **figures(correct(said), said.labels)})
    return found


def show(rows: Sequence[Mapping[str, Any]], most: int = 60) -> None:
    """Print the mean over tasks of every choice, and what leaving one task out at a time would choose."""
    table: dict[tuple[str, str, str], dict[str, dict[str, list[Mapping[str, Any]]]]] = {}
    for row in rows:
        place = table.setdefault((row["way"], row["variant"], row["correction"]), {})
        place.setdefault(row["data"], {}).setdefault(row["task"], []).append(row)
    base = table["erm", "raw", "TS"]

    def mean(choice: Mapping[str, Any], data: str, figure: str, tasks: Sequence[str]) -> float:
        return float(np.mean([np.mean([r[figure] for r in choice[data][t]]) for t in tasks]))

    complete = {key: found for key, found in table.items() if found["dev"].keys() == base["dev"].keys()}
    tasks, other = list(base["dev"]), list(base["ood"])
    heads = [("dev", "accuracy"), ("dev", "ece"), ("dev", "nll"), ("test", "accuracy"), ("test", "ece"),
             ("test", "nll"), ("ood", "accuracy"), ("ood", "ece"), ("ood", "nll"), ("ood", "aurc")]  # fmt: skip

    def line(key: tuple[str, str, str]) -> str:
        values = [mean(complete[key], data, figure, other if data == "ood" else tasks) for data, figure in heads]
        shown = [f"{100 * v:6.2f}" if f != "nll" else f"{v:6.4f}" for v, (_, f) in zip(values, heads, strict=True)]
        return "  ".join(shown) + "  " + " · ".join(key)

    def worth(key: tuple[str, str, str], left: str | None = None) -> float:
        """The mean of what is gained over plain training with a temperature: ECE in points, NLL in percent."""
        total = 0.0
        for data, where in (("dev", tasks), ("ood", other)):
            used = [t for t in where if t != left]
            total += 100 * (mean(base, data, "ece", used) - mean(complete[key], data, "ece", used))
            before = mean(base, data, "nll", used)
            total += 100 * (before - mean(complete[key], data, "nll", used)) / before
        return total

    print("  ".join(f"{d[:4]} {f[:3]}" for d, f in heads))
    for key in (("erm", "raw", "none"), ("erm", "raw", "TS"), ("ensemble", "raw", "TS")):
        if key in complete:
            print(line(key))
    print("best by gain in ECE and NLL, in and out of domain:")
    for key in sorted(complete, key=worth, reverse=True)[:most]:
        print(line(key), f" {worth(key):+.2f}")
    print("each way and average with a temperature alone:")
    for key in sorted((k for k in complete if k[2] == "TS"), key=worth, reverse=True):
        print(line(key), f" {worth(key):+.2f}")
    print("one task left out at a time:")
    for left in tasks:
        chosen = max((k for k in complete if k[0] != "ensemble"), key=lambda key: worth(key, left))
        print(f"{left}: {' · '.join(chosen)}")


if __name__ == "__main__":
    main()
