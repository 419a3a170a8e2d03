"""Figures of corrected predictions, means over tasks, ranks, and differences with intervals, as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from default_corrections import CORRECTIONS, Correction
from default_reading import Array, Runs, Sets, ensemble
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, wilcoxon

SEEDS = 3
"""Of all ways the first three seeds are compared; more of them are members of ensembles alone."""

Choice = tuple[str, str, str]
Table = dict[Choice, dict[str, dict[str, list[Mapping[str, Any]]]]]
"""Way, variant, correction → dev, test, ood or away → task → a row for each seed."""


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


def rows_of(task: str, choice: Choice, seed: int, sets: Sets) -> list[dict[str, Any]]:
    """Return the figures of one run: dev crosswise, test, and other domains (dev sets `ood`, test sets `away`)."""
    way, variant, name = choice
    about = {"task": task, "way": way, "variant": variant, "seed": seed, "correction": name}
    correct = CORRECTIONS[name](sets)
    found = [{**about, "data": "dev", **crossed(sets, CORRECTIONS[name])}]
    for data, said in sets.items():
        if data.split("-")[0] in ("test", "ood", "away"):
            found.append({**about, "data": data.split("-")[0], **figures(correct(said), said.labels)})
    return found


def arranged(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows by choice, data and task."""
    table: Table = {}
    for row in rows:
        place = table.setdefault((row["way"], row["variant"], row["correction"]), {})
        place.setdefault(row["data"], {}).setdefault(row["task"], []).append(row)
    return table


def mean(table: Table, key: Choice, data: str, figure: str, tasks: Sequence[str]) -> float:
    """Return the mean over tasks of the mean over seeds; of the debiased ECE, the root of the mean square."""
    if figure == "debiased_ece":
        square = mean(table, key, data, "squared_ece", tasks)
        return float(np.sign(square) * abs(square) ** 0.5)
    return float(np.mean([np.mean([row[figure] for row in table[key][data][task]]) for task in tasks]))


def ranks(table: Table, keys: Sequence[Choice], data: str, figure: str) -> tuple[dict[Choice, float], float]:
    """Return each choice's mean rank over tasks by a figure, and how likely that is by chance (Friedman)."""
    tasks = [task for task in table[keys[0]].get(data, {}) if all(task in table[key].get(data, {}) for key in keys)]
    scores = np.array([[mean(table, key, data, figure, [task]) for key in keys] for task in tasks])
    placed = rankdata(scores, axis=1).mean(0)
    return dict(zip(keys, map(float, placed), strict=True)), float(friedmanchisquare(*scores.T).pvalue)


def shown_figure(figure: str, value: float) -> str:
    return f"{value:.4f}" if figure in ("nll", "brier") else f"{100 * value:.2f}"


def per_task(table: Table, keys: Sequence[Choice], elsewhere: str, names: Mapping[Choice, str]) -> list[str]:
    """Return a Markdown table of ECE and NLL of each task, test / other domain."""
    tasks = list(table[keys[0]]["dev"])
    shown = ["| | " + " | ".join(tasks) + " |", "|" + "---|" * (len(tasks) + 1)]
    for figure in ("ece", "nll"):
        for key in keys:
            cells = []
            for task in tasks:
                data = [d for d in ("test", elsewhere) if task in table[key].get(d, {})]
                cells.append(" / ".join(shown_figure(figure, mean(table, key, d, figure, [task])) for d in data))
            shown.append(f"| {figure.upper()}, {names[key]} | {' | '.join(cells)} |")
    return shown


def difference(runs: Runs, first: Choice, second: Choice, elsewhere: str, draws: int = 1000) -> list[dict[str, Any]]:
    """Return the mean difference over tasks, test and elsewhere, with an interval from resampled rows and seeds.

    With it comes how likely differences that favour one so often are by chance, a task being one draw (Wilcoxon's
    signed ranks): it asks whether another task would show the same.
    """
    rng, found = np.random.default_rng(0), []
    for data in ("test", elsewhere):
        points, spread = [], []
        for task in sorted({key[0] for key in runs}):
            name = next((n for n in next(iter(runs[task, "erm", "raw"].values())) if n.split("-")[0] == data), None)
            if name is None:
                continue
            a, b = (sums_of(runs, task, choice, name) for choice in (first, second))
            points.append(folded(a.mean(1)) - folded(b.mean(1)))
            counts = rng.multinomial(a.shape[1], np.full(a.shape[1], 1 / a.shape[1]), size=draws) / a.shape[1]
            seeds = rng.integers(0, len(a), (draws, len(a)))
            ours, theirs = (
                np.take_along_axis(np.einsum("dn,snk->dsk", counts, x, optimize=True), seeds[:, :, None], 1)
                for x in (a, b)
            )
            drawn = [folded(x) - folded(y) for x, y in zip(ours, theirs, strict=True)]
            spread.append(drawn)
        point, all_drawn = np.mean(points, axis=0), np.mean(spread, axis=0)
        low, high = np.quantile(all_drawn, [0.025, 0.975], axis=0) - (all_drawn.mean(0) - point)
        by_task = np.array(points)
        chances = [float(wilcoxon(c).pvalue) if len(c) > 5 and np.any(c) else float("nan") for c in by_task.T]
        found.append(
            {
                "data": data,
                **{
                    figure: (point[at], low[at], high[at], chances[at], by_task[:, at])
                    for at, figure in enumerate(("ece", "nll", "accuracy"))
                },
            }
        )
    return found


def told(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return differences as lines of Markdown."""
    lines = []
    for each in found:
        parts = []
        for figure, name, digits in (("accuracy", "accuracy", 2), ("ece", "ECE", 2), ("nll", "NLL", 4)):
            point, low, high, chance, _ = each[figure]
            by_tasks = "" if np.isnan(chance) else f" (over tasks p = {chance:.3f})"
            parts.append(f"{name} {point:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{by_tasks}")
        worst = " ".join(f"{value:+.2f}" for value in each["ece"][4])
        lines.append(f"- {each['data']}: {', '.join(parts)}; ECE by task, A to Z: {worst}")
    return lines


def sets_of(runs: Runs, task: str, way: str, variant: str) -> list[Sets]:
    """Return the sets of three seeds; of an ensemble (`5 × erm`), the same three times."""
    if "×" in way:
        count, of = way.split(" × ")
        return [ensemble(list(runs[task, of, variant].values())[: int(count)])] * SEEDS
    return list(runs[task, way, variant].values())[:SEEDS]


def sums_of(runs: Runs, task: str, choice: Choice, name: str) -> Array:
    """Return what ECE, NLL and accuracy are sums of, for each of three seeds and each row: [3, rows, 17]."""
    way, variant, correction = choice
    found = []
    for sets in sets_of(runs, task, way, variant):
        probs, labels = CORRECTIONS[correction](sets)(sets[name]), sets[name].labels
        sure, hit = probs.max(1), (probs.argmax(1) == labels).astype(np.float64)
        gaps = np.zeros((len(labels), 15))
        gaps[np.arange(len(labels)), np.clip(np.ceil(15 * sure).astype(np.int64) - 1, 0, 14)] = sure - hit
        found.append(np.column_stack([gaps, -np.log(probs[np.arange(len(labels)), labels]), hit]))
    return np.stack(found)


def folded(sums: Array) -> Array:
    return np.array([100 * np.abs(sums[:, :15]).sum(1).mean(), sums[:, 15].mean(), 100 * sums[:, 16].mean()])
