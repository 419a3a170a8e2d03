"""What was learnt from the runs of `default_runs.py`: ways to train × averages × corrections, before any is chosen.

    python benchmarks/default_choice.py OUT [OUT …] [--out FOLDER]

In domain, a choice is made on dev: corrections are fitted on one half of it and judged on the other, both ways round.
Out of domain it is made on the dev sets of other domains. What may be chosen gains in ECE and NLL, in domain and out
of it, and costs no task more than half a point of ECE in domain; of these, what gains most. With one task left out at
a time, no task's own data have a say in what it gets. Test rows in domain are shown, and decide nothing.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

PER_DEVIATION = 8
# As in calmix.models.cooling.
NEAREST_AND_FARTHEST = (-3.0, 4.0)
AUTO, BASE = ("erm", "raw", "mahalanobis-head about 0.1"), ("erm", "raw", "TS")
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
Runs = dict[tuple[str, str, str], dict[int, Sets]]
Correction = Callable[[Sets], Callable[[Said], Array]]
"""Sets to fit on (dev and its spoilt copies) → probabilities of any other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, help="a folder for the tables and the figures")
    asked = parser.parse_args()
    runs = load(asked.folders)
    rows = judged(runs)
    text = "\n".join(report(runs, rows)) + "\n"
    print(text)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "tables.md").write_text(text, encoding="utf-8")
        with (asked.out / "figures.csv").open("w", newline="", encoding="utf-8") as file:
            shown = [row for row in rows if row["correction"] in ("none", "TS", AUTO[2])]
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in shown)


def load(folders: Sequence[Path]) -> Runs:
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
            scaled = logits / np.exp(log_t)[:, None]
            logs = log_softmax(scaled)
            # d/d(log T) of −Σ t·log p is Σ (t − p)·z/T.
            slope = ((targets - np.exp(logs)) * scaled).sum(1) * rows
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
    """Return what `calmix train` does: the first slope fitted on dev, near what is expected; any other is fixed."""

    def correction(fit: Sets) -> Callable[[Said], Array]:
        dev = fit["dev"]

        def cooled(said: Said, slope: float) -> Array:
            reach = np.clip(said.far[:, list(columns)], *NEAREST_AND_FARTHEST)
            out: Array = said.logits / np.exp(reach @ np.array([slope, *[also] * (len(columns) - 1)]))[:, None]
            return out

        def cost(slope: float) -> float:
            cold = cooled(dev, slope)
            logs = log_softmax(cold / scaled(cold, dev.labels))[np.arange(len(cold)), dev.labels]
            return float(-min(len(cold), 1000) * logs.mean() + ((slope - expected) / 0.05) ** 2 / 2)

        slope = minimize_scalar(cost, bounds=(0, 0.5), method="bounded", options={"xatol": 0.005}).x
        level = scaled(cooled(dev, slope), dev.labels)
        return lambda said: np.exp(log_softmax(cooled(said, slope) / level))

    return correction


CORRECTIONS: dict[str, Correction] = {
    "none": plain,
    "TS": temperature,
    **{f"{DISTANCES[c]} {slope:g} for all": fixed(c, slope) for c in range(5) for slope in (0.1, 0.2)},
    **{f"{DISTANCES[c]} about {slope:g}": near([c], slope) for c in range(2) for slope in (0.1, 0.2, 0.3)},
    **{f"{DISTANCES[c]} fitted on spoilt dev": fitted([c], SPOILT) for c in range(5)},
    "mahalanobis-head about 0.1, mahalanobis-middle 0.05": near([1, 3], 0.1, 0.05),
    "mahalanobis-head about 0.2, mahalanobis-middle 0.05": near([1, 3], 0.2, 0.05),
    "all but energy fitted on spoilt dev": fitted(range(4), SPOILT),
}


def figures(probs: Array, labels: NDArray[np.int64]) -> dict[str, float]:
    """Return what `calmix evaluate` calls so, in plain numpy: it is asked for a million times."""
    winner = probs.argmax(1)
    sure, hit = probs[np.arange(len(labels)), winner], (winner == labels).astype(np.float64)
    gold = probs[np.arange(len(labels)), labels]
    where = np.clip(np.ceil(15 * sure).astype(np.int64) - 1, 0, 14)
    gaps = np.bincount(where, weights=sure - hit, minlength=15)
    wrong = np.cumsum(1 - hit[np.argsort(-sure, kind="stable")]) / np.arange(1, len(labels) + 1)
    rows, squares = (np.bincount(where, weights=w, minlength=15) for w in (np.ones(len(labels)), (sure - hit) ** 2))
    return {
        "accuracy": float(hit.mean()),
        "ece": float(np.abs(gaps).sum() / len(labels)),
        "nll": float(-np.log(gold).mean()),
        "brier": float((np.square(probs).sum(1) - 2 * gold + 1).mean()),
        "aurc": float(wrong.mean()),
        "squared_ece": float(((gaps**2 - squares) / np.maximum(rows - 1, 1)).sum() / len(labels)),
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


def judged(runs: Runs) -> list[dict[str, Any]]:
    """Return the figures of every task, way, average and correction: dev, test, and other domains' dev."""
    rows: list[dict[str, Any]] = []
    for (task, way, variant), seeds in runs.items():
        for seed, sets in list(seeds.items())[:3]:
            # Averages of weights are compared with a temperature, and as the default would have them.
            tried = CORRECTIONS if variant == "raw" else {name: CORRECTIONS[name] for name in ("TS", AUTO[2])}
            for name, correction in tried.items():
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


Choice = tuple[str, str, str]
Table = dict[Choice, dict[str, dict[str, list[Mapping[str, Any]]]]]
"""Way, average, correction → dev, test or ood → task → a row for each seed."""


def arranged(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows by choice, data and task; a plain run's first seeds alone, so that all have equally many."""
    table: Table = {}
    for row in rows:
        if row["seed"] < 3:
            place = table.setdefault((row["way"], row["variant"], row["correction"]), {})
            place.setdefault(row["data"], {}).setdefault(row["task"], []).append(row)
    return table


def mean(table: Table, key: Choice, data: str, figure: str, tasks: Sequence[str]) -> float:
    """Return the mean over tasks of the mean over seeds; of the debiased ECE, the root of the mean square."""
    if figure == "debiased_ece":
        square = mean(table, key, data, "squared_ece", tasks)
        return float(np.sign(square) * abs(square) ** 0.5)
    return float(np.mean([np.mean([row[figure] for row in table[key][data][task]]) for task in tasks]))


def worth(table: Table, key: Choice, left: str | None = None) -> float:
    """Return what is gained over plain training with a temperature on dev, in and out of domain: ECE points + NLL %."""
    total = 0.0
    for data in ("dev", "ood"):
        used = [task for task in table[BASE][data] if task != left]
        before, after = (mean(table, k, data, "nll", used) for k in (BASE, key))
        total += 100 * (mean(table, BASE, data, "ece", used) - mean(table, key, data, "ece", used))
        total += 100 * (before - after) / before
    return total


def allowed(table: Table, key: Choice, left: str | None = None) -> bool:
    """Return whether a choice gains on all four, and costs no task more than half a point of ECE on its dev set."""
    for data, figure in (("dev", "ece"), ("dev", "nll"), ("ood", "ece"), ("ood", "nll")):
        used = [task for task in table[BASE][data] if task != left]
        if mean(table, key, data, figure, used) >= mean(table, BASE, data, figure, used):
            return False
    inside = [task for task in table[BASE]["dev"] if task != left]
    losses = [mean(table, key, "dev", "ece", [task]) - mean(table, BASE, "dev", "ece", [task]) for task in inside]
    return max(losses) <= 0.005


COLUMNS = [("dev", "ece"), ("dev", "nll"), ("test", "accuracy"), ("test", "ece"), ("test", "debiased_ece"),
           ("test", "nll"), ("test", "brier"), ("test", "aurc"), ("ood", "accuracy"), ("ood", "ece"),
           ("ood", "debiased_ece"), ("ood", "nll"), ("ood", "brier"), ("ood", "aurc")]  # fmt: skip


def lines(table: Table, keys: Sequence[Choice], tasks: Sequence[str]) -> list[str]:
    """Return a Markdown table of choices on some tasks, with the mean rank of each over all figures but accuracy."""
    heads = [c for c in COLUMNS if any(task in table[keys[0]].get(c[0], {}) for task in tasks)]
    values = {
        key: [mean(table, key, d, f, [t for t in tasks if t in table[key].get(d, {})]) for d, f in heads]
        for key in keys
    }
    ranks = {key: [] for key in keys}  # type: dict[Choice, list[float]]
    for task in tasks:
        for data, figure in (c for c in heads if c[1] in ("ece", "nll", "brier", "aurc") and c[0] != "dev"):
            if task in table[keys[0]].get(data, {}):
                scores = [mean(table, key, data, figure, [task]) for key in keys]
                for key, rank in zip(keys, np.argsort(np.argsort(scores)) + 1, strict=True):
                    ranks[key].append(float(rank))
    shown = [
        "| way | average | correction | " + " | ".join(f"{d} {f}".replace("_", " ") for d, f in heads) + " | rank |"
    ]
    shown.append("|" + "---|" * (len(heads) + 4))
    for key in keys:
        cells = [
            f"{v:.4f}" if f in ("nll", "brier") else f"{100 * v:.2f}"
            for v, (_, f) in zip(values[key], heads, strict=True)
        ]
        shown.append(f"| {' | '.join(key)} | {' | '.join(cells)} | {np.mean(ranks[key]):.2f} |")
    return shown


def per_task(table: Table, keys: Sequence[Choice]) -> list[str]:
    """Return a Markdown table of ECE and NLL of each task, test / other domain."""
    tasks = list(table[BASE]["dev"])
    shown = ["| | " + " | ".join(tasks) + " |", "|" + "---|" * (len(tasks) + 1)]
    for figure, scale, digits in (("ece", 100, 2), ("nll", 1, 4)):
        for key in keys:
            cells = []
            for task in tasks:
                found = [
                    f"{scale * mean(table, key, d, figure, [task]):.{digits}f}"
                    for d in ("test", "ood")
                    if task in table[key].get(d, {})
                ]
                cells.append(" / ".join(found))
            shown.append(f"| {figure.upper()}, {' · '.join(key)} | {' | '.join(cells)} |")
    return shown


def difference(runs: Runs, first: Choice, second: Choice, draws: int = 1000) -> list[str]:
    """Return the mean difference over tasks, test and elsewhere, with an interval from resampled rows and seeds."""
    rng, shown = np.random.default_rng(0), []
    for data in ("test", "ood"):
        points, spread = [], []
        for task in sorted({key[0] for key in runs}):
            name = next((n for n in next(iter(runs[task, "erm", "raw"].values())) if n.split("-")[0] == data), None)
            if name is None:
                continue
            a, b = (sums_of(runs, task, choice, name) for choice in (first, second))
            points.append(folded(a.mean(1)) - folded(b.mean(1)))
            drawn = []
            for _ in range(draws):
                rows = rng.multinomial(a.shape[1], np.full(a.shape[1], 1 / a.shape[1])) / a.shape[1]
                seeds = rng.integers(0, len(a), len(a))
                drawn.append(
                    folded(np.einsum("n,snk->sk", rows, a[seeds])) - folded(np.einsum("n,snk->sk", rows, b[seeds]))
                )
            spread.append(drawn)
        point, all_drawn = np.mean(points, axis=0), np.mean(spread, axis=0)
        low, high = np.quantile(all_drawn, [0.025, 0.975], axis=0) - (all_drawn.mean(0) - point)
        worst = [f"{value:+.2f}" for value in np.array(points)[:, 0]]
        shown.append(
            f"{data}: accuracy {point[2]:+.2f} [{low[2]:+.2f}, {high[2]:+.2f}], ECE {point[0]:+.2f} [{low[0]:+.2f}, "
            f"{high[0]:+.2f}], NLL {point[1]:+.4f} [{low[1]:+.4f}, {high[1]:+.4f}]; ECE by task {' '.join(worst)}"
        )
    return shown


def sums_of(runs: Runs, task: str, choice: Choice, name: str) -> Array:
    """Return what ECE, NLL and accuracy are sums of, for each of three seeds and each row: [3, rows, 17]."""
    way, variant, correction = choice
    found = []
    for seed in range(3):
        sets = ensemble(runs[task, "erm", variant]) if way == "ensemble" else runs[task, way, variant][seed]
        probs, labels = CORRECTIONS[correction](sets)(sets[name]), sets[name].labels
        sure, hit = probs.max(1), (probs.argmax(1) == labels).astype(np.float64)
        gaps = np.zeros((len(labels), 15))
        gaps[np.arange(len(labels)), np.clip(np.ceil(15 * sure).astype(np.int64) - 1, 0, 14)] = sure - hit
        found.append(np.column_stack([gaps, -np.log(probs[np.arange(len(labels)), labels]), hit]))
    return np.stack(found)


def folded(sums: Array) -> Array:
    return np.array([100 * np.abs(sums[:, :15]).sum(1).mean(), sums[:, 15].mean(), 100 * sums[:, 16].mean()])


def report(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return everything that decides, as Markdown."""
    table = arranged(rows)
    tasks = list(table[BASE]["dev"])
    complete = [key for key in table if table[key]["dev"].keys() == table[BASE]["dev"].keys()]
    own = ("own", "raw", AUTO[2])
    named = [
        ("erm", "raw", "none"),
        BASE,
        ("erm", "0.25", "TS"),
        ("own", "raw", "TS"),
        AUTO,
        own,
        ("ensemble", "raw", "TS"),
    ]
    named = [key for key in named if key in complete]
    out = [
        "## All tasks",
        "",
        *lines(table, named, tasks),
        "",
        "## By task, test / other domain",
        "",
        *per_task(table, named),
    ]
    out += ["", "## Differences, with 95 % intervals", ""]
    for first, second in (
        (AUTO, BASE),
        (own, BASE),
        (own, AUTO),
        (AUTO, ("ensemble", "raw", "TS")),
        (own, ("ensemble", "raw", "TS")),
    ):
        if first in complete and second in complete:
            out += [f"{' · '.join(first)} minus {' · '.join(second)}", ""]
            out += [f"- {line}" for line in difference(runs, first, second)] + [""]
    out += [
        "## One task left out at a time",
        "",
        "What the others would choose, and what that gives the task left out.",
        "",
    ]
    out += [
        "| left out | chosen | gain of the others | ECE test, with a temperature → chosen | other domain |",
        "|---|---|---|---|---|",
    ]
    for left in tasks:
        others = [k for k in complete if k[0] != "ensemble" and allowed(table, k, left)]
        key = max(others, key=lambda k: worth(table, k, left))
        cells = [
            f"{100 * mean(table, BASE, d, 'ece', [left]):.2f} → {100 * mean(table, key, d, 'ece', [left]):.2f}"
            if left in table[BASE].get(d, {})
            else "–"
            for d in ("test", "ood")
        ]
        out.append(f"| {left} | {' · '.join(key)} | {worth(table, key, left):+.2f} | {' | '.join(cells)} |")
    out += ["", "## Everything that was tried on all tasks, by what it gains on dev", ""]
    ranked = sorted(complete, key=lambda key: worth(table, key), reverse=True)
    out += ["Marked are those that gain on all four and cost no task more than half a point of ECE on dev.", ""]
    marked = [(f"{key[0]} ✓" if allowed(table, key) else key[0], *key[1:]) for key in ranked]
    out += lines({m: table[key] for m, key in zip(marked, ranked, strict=True)}, marked, tasks)
    out += ["", "## Ways that were tried on some tasks, with a temperature alone", ""]
    for way in sorted({key[0] for key in table} - {key[0] for key in complete}):
        some = list(table[way, "raw", "TS"]["dev"])
        out += [f"On {', '.join(some)}:", "", *lines(table, [BASE, ("own", "raw", "TS"), (way, "raw", "TS")], some), ""]
    return out


if __name__ == "__main__":
    main()
