"""What was learnt from `default_runs.py --search`: ways to train × averages × corrections, before any is chosen.

    python benchmarks/default_choice.py OUT [--out FOLDER]

OUT has a folder for each process that trained.

In domain, a choice is made on dev: corrections are fitted on one half of it and judged on the other, both ways round.
Out of domain it is made on the dev sets of other domains. What may be chosen gains in ECE and NLL, in domain and out
of it, and costs no task more than half a point of ECE in domain; of these, what gains most. With one task left out at
a time, no task's own data have a say in what it gets. Test rows in domain are shown, and decide nothing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from default_corrections import CORRECTIONS
from default_figures import Choice, Table, arranged, difference, mean, per_task, rows_of, sets_of, shown_figure, told
from default_reading import Runs, load

AUTO, BASE, OWN = ("erm", "raw", "auto"), ("erm", "raw", "TS"), ("own", "raw", "auto")
FIVE = ("5 × erm", "raw", "TS")
COLUMNS = [("dev", "ece"), ("dev", "nll"), ("test", "accuracy"), ("test", "ece"), ("test", "debiased_ece"),
           ("test", "nll"), ("test", "brier"), ("test", "aurc"), ("ood", "accuracy"), ("ood", "ece"),
           ("ood", "debiased_ece"), ("ood", "nll"), ("ood", "brier"), ("ood", "aurc")]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="a folder for the tables")
    asked = parser.parse_args()
    runs = load(sorted(log.parent for log in asked.folder.glob("*/log.json")))
    text = "\n".join(report(runs, arranged(judged(runs)))) + "\n"
    print(text)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "search.md").write_text(text, encoding="utf-8")


def judged(runs: Runs) -> list[dict[str, Any]]:
    """Return the figures of every task, way, average and correction: dev, test, and other domains' dev."""
    rows: list[dict[str, Any]] = []
    for (task, way, variant), seeds in runs.items():
        # Averages of weights are compared with a temperature, and as the default would have them.
        tried = CORRECTIONS if variant == "raw" else ("TS", "auto")
        for seed, sets in list(seeds.items())[:3]:
            for name in tried:
                rows += rows_of(task, (way, variant, name), seed, sets)
        if way == "erm" and len(seeds) >= 5:
            rows += rows_of(task, ("5 × erm", variant, "TS"), 0, sets_of(runs, task, "5 × erm", variant)[0])
    return rows


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


def lines(table: Table, keys: Sequence[Choice], tasks: Sequence[str]) -> list[str]:
    """Return a Markdown table of choices on some tasks."""
    heads = [c for c in COLUMNS if any(task in table[keys[0]].get(c[0], {}) for task in tasks)]
    shown = ["| way | average | correction | " + " | ".join(f"{d} {f}".replace("_", " ") for d, f in heads) + " |"]
    shown.append("|" + "---|" * (len(heads) + 3))
    for key in keys:
        cells = [
            shown_figure(f, mean(table, key, d, f, [t for t in tasks if t in table[key].get(d, {})])) for d, f in heads
        ]
        shown.append(f"| {' | '.join(key)} | {' | '.join(cells)} |")
    return shown


def report(runs: Runs, table: Table) -> list[str]:
    """Return everything that decides, as Markdown."""
    tasks = list(table[BASE]["dev"])
    complete = [key for key in table if table[key]["dev"].keys() == table[BASE]["dev"].keys()]
    named = [("erm", "raw", "none"), BASE, ("erm", "0.25", "TS"), ("own", "raw", "TS"), AUTO, OWN, FIVE]
    named = [key for key in named if key in complete]
    out = ["## All tasks", "", *lines(table, named, tasks), "", "## By task, test / other domain's dev", ""]
    out += per_task(table, named, "ood", {key: " · ".join(key) for key in named})
    out += ["", "## Differences, with 95 % intervals", ""]
    for first, second in ((AUTO, BASE), (OWN, BASE), (OWN, AUTO), (AUTO, FIVE), (OWN, FIVE)):
        if first in complete and second in complete:
            out += [f"{' · '.join(first)} minus {' · '.join(second)}", ""]
            out += [*told(difference(runs, first, second, "ood")), ""]
    out += [
        "## One task left out at a time",
        "",
        "What the others would choose, and what that gives the task left out.",
    ]
    out += ["", "| left out | chosen | gain of the others | ECE test, with a temperature → chosen | other domain |"]
    out += ["|---|---|---|---|---|"]
    for left in tasks:
        others = [k for k in complete if "×" not in k[0] and allowed(table, k, left)]
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
