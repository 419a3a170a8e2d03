"""The default against the papers' methods and ensembles, from the runs of `default_runs.py`: tables, ranks, tests.

    python benchmarks/default_judged.py OUT --out FOLDER

OUT has a folder for each process that trained. What each trained is told from its log: a model, and tasks that the
default was developed on or that had no say in it. Nothing is chosen here. Temperatures and slopes are fitted on dev;
all figures are of test sets, in domain and out of it.
"""

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from default_corrections import ERRORS, beyond_guessing, fitted
from default_figures import (
    SEEDS,
    Choice,
    Table,
    arranged,
    difference,
    figures,
    mean,
    per_task,
    ranks,
    rows_of,
    sets_of,
    shown_figure,
)
from default_reading import Runs, ensemble, load
from default_tasks import CONFIRMATION
from default_training import MAPPED, MAPS, TAUGHT, TEACHES

RAW = "raw"
EPOCHS = "erm, epochs 2 and 3"
AUTO, BASE, FIVE = ("erm", RAW, "auto"), ("erm", RAW, "TS"), ("5 × erm", RAW, "TS")
OWN, QUARTER, ENTROPY = ("own", RAW, "auto"), ("own-quarter", RAW, "auto"), ("erl", RAW, "auto")
METHODS: dict[Choice, str] = {
    ("erm", RAW, "none"): "`erm`",
    BASE: "`erm` + TS",
    ("input-mixup", RAW, "TS"): "`input-mixup` + TS",
    ("aum-saliency", RAW, "TS"): "`aum-saliency` + LS + TS",
    ("tdmixup", RAW, "TS"): "`tdmixup` + TS",
    ("informed-sd", RAW, "none"): "informed + self-distillation",
    ("informed-sd", RAW, "TS"): "the same + TS",
    ("erl", RAW, "TS"): "`erl` + TS",
    AUTO: "**`auto`**",
    OWN: "`auto`, own=0.5",
    QUARTER: "`auto`, own=0.25",
    ENTROPY: "`auto`, entropy=0.1",
    ("input-mixup", RAW, "auto"): "`input-mixup`, cooled as by `auto`",
    ("aum-saliency", RAW, "auto"): "`aum-saliency` + LS, cooled as by `auto`",
    (EPOCHS, RAW, "TS"): "`erm`, epochs 2 and 3 averaged + TS",
    (EPOCHS, RAW, "auto"): "`auto`, epochs 2 and 3 averaged",
    ("2 × erm", RAW, "TS"): "2 × `erm` + TS",
    ("3 × erm", RAW, "TS"): "3 × `erm` + TS",
    FIVE: "5 × `erm` + TS",
    ("5 × erm", RAW, "auto"): "5 × `erm`, cooled as by `auto`",
}
COLUMNS = [(data, figure) for data in ("test", "away")
           for figure in ("accuracy", "ece", "debiased_ece", "nll", "brier", "aurc")]  # fmt: skip
RANKED = [("test", "ece"), ("test", "nll"), ("test", "brier"), ("test", "aurc"), ("away", "ece"), ("away", "nll")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    text, rows, parts = [], [], parts_of(asked.folder)
    for title, folders in parts.items():
        runs, costs = with_epochs(load(folders)), costs_of(folders)
        tasks = sorted({task for task, _, _ in runs})
        found = judged(runs, tasks)
        rows += [{"part": title, **row} for row in found]
        text += [f"# {title}", "", *main_tables(runs, arranged(found), costs), *more_tables(runs, arranged(found))]
        some = [task for task in tasks if all((task, way, RAW) in runs for way in {way for _, way, _ in runs})]
        if some != tasks:
            few = {key: seeds for key, seeds in runs.items() if key[0] in some}
            text += [f"# {title}: those on which all methods were finished", "", f"{', '.join(some)}.", ""]
            text += main_tables(few, arranged(judged(few, some)), costs)
    everywhere = load([folder for title, folders in parts.items() if "gte" not in title for folder in folders])
    text += ["# All tasks, minilm", "", "`auto` minus each other, with 95 % intervals:", ""]
    text += [*compared(everywhere, [(AUTO, key) for key in (BASE, FIVE)]), ""]
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "judged.md").write_text("\n".join(text), encoding="utf-8")
    with (asked.out / "figures.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def parts_of(folder: Path) -> dict[str, list[Path]]:
    """Return the folders of processes that belong together: a model, and tasks of one kind."""
    found: dict[str, list[Path]] = {}
    for log in sorted(folder.glob("*/log.json")):
        settings = json.loads(log.read_text(encoding="utf-8"))["settings"]
        new = set(settings["tasks"].split(",")) <= set(CONFIRMATION)
        model = Path(settings["model"]).name
        title = f"{'Tasks that had no say' if new else 'Development tasks'}, {model}"
        found.setdefault(title, []).append(log.parent)
    return dict(sorted(found.items(), key=lambda item: ("gte" in item[0], "no say" in item[0])))


def with_epochs(runs: Runs) -> Runs:
    """Return runs with the mean of what the last two epochs of plain ones say; distances are the chosen epoch's."""
    more: Runs = {}
    for task, way, variant in runs:
        if variant == "epoch3":
            seeds = {}
            for seed, sets in runs[task, way, RAW].items():
                both = ensemble(runs[task, way, f"epoch{epoch}"][seed] for epoch in (2, 3))
                seeds[seed] = {name: replace(said, far=sets[name].far) for name, said in both.items()}
            more[task, EPOCHS, RAW] = seeds
    return runs | more


def judged(runs: Runs, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the figures of each method on each task and seed; of methods that all tasks have."""
    rows = []
    for choice in METHODS:
        way, variant, _ = choice
        if all((task, way.split(" × ")[-1], variant) in runs for task in tasks):
            for task in tasks:
                found = sets_of(runs, task, way, variant)
                for seed, sets in enumerate(found[:1] if "×" in way else found):
                    rows += rows_of(task, choice, seed, sets)
    return rows


def costs_of(folders: Sequence[Path]) -> dict[str, float]:
    """Return what each way to train costs in plain runs, the run that maps and the teacher's included, by its steps."""
    steps: dict[tuple[str, str], int] = {}
    for folder in folders:
        for run in json.loads((folder / "log.json").read_text(encoding="utf-8"))["runs"]:
            steps[run["way"], run["task"]] = run["steps"]
    costs = {EPOCHS: 1.0}
    for way in {way for way, _ in steps}:
        before = [MAPS, TEACHES] if way in TAUGHT else [MAPS] if way in MAPPED else []
        share = [sum(steps[each, task] for each in [*before, way]) / steps[MAPS, task] for w, task in steps if w == way]
        costs[way] = float(np.mean(share))
    return costs


def main_tables(runs: Runs, table: Table, costs: Mapping[str, float]) -> list[str]:
    """Return means over tasks, ranks and differences of one model on one kind of tasks, as Markdown."""
    keys, tasks = list(table), list(table[BASE]["test"])
    away = list(table[BASE].get("away", {}))
    shown = ["| method | runs | " + " | ".join(_head(*column) for column in COLUMNS) + " |"]
    shown += ["|" + "---|" * (len(COLUMNS) + 2)]
    for key in keys:
        count, _, of = key[0].rpartition(" × ")
        cost = costs[of] * int(count or 1)
        cells = [shown_figure(f, mean(table, key, d, f, tasks if d == "test" else away)) for d, f in COLUMNS]
        shown.append(f"| {METHODS[key]} | {cost:.1f} | {' | '.join(cells)} |")
    counts = f"{len(tasks)} tasks in domain, {len(away)} of them elsewhere; {SEEDS} seeds"
    out = [f"{counts}, ensembles once (of the first runs).", "", *shown, ""]
    out += ["## Mean ranks over tasks", "", "1 is best. Last row: how likely such ranks are by chance (Friedman).", ""]
    placed = [ranks(table, keys, data, figure) for data, figure in RANKED]
    out += ["| method | " + " | ".join(_head(*column) for column in RANKED) + " |", "|" + "---|" * (len(RANKED) + 1)]
    for key in keys:
        out.append(f"| {METHODS[key]} | {' | '.join(f'{found[key]:.1f}' for found, _ in placed)} |")
    out.append(f"| p | {' | '.join(f'{chance:.2g}' for _, chance in placed)} |")
    out += ["", "## `auto` minus each other, with 95 % intervals", ""]
    out += compared(runs, [(AUTO, key) for key in keys if key != AUTO])
    for own in (key for key in (OWN, QUARTER, ENTROPY) if key in keys):
        out += ["", f"{METHODS[own]} minus each other:", ""]
        out += compared(runs, [(own, key) for key in (BASE, AUTO, FIVE)])
    return [*out, ""]


def more_tables(runs: Runs, table: Table) -> list[str]:
    """Return figures by task, where `auto` falls back, and how much better any temperature by distance could be."""
    tasks = list(table[BASE]["test"])
    out = ["## By task: ECE and NLL, test / other domain", "", *per_task(table, list(table), "away", METHODS), ""]
    out += ["## Where `auto` falls back to the temperature alone", "", *fallen_back(runs, tasks), ""]
    best = []
    for task in tasks:
        for sets in sets_of(runs, task, "erm", RAW):
            told_all = {"dev": sets["test"]}
            best.append(figures(fitted([1], ())(told_all)(sets["test"]), sets["test"].labels)["nll"])
    found = [np.mean(best), *(mean(table, key, "test", "nll", tasks) for key in (AUTO, FIVE))]
    line = (
        "A temperature and a slope fitted on the test rows themselves have an NLL of {:.4f} in domain, `auto` {:.4f}, "
    )
    out += ["## The wall", "", (line + "five runs averaged {:.4f}.").format(*found)]
    return [*out, ""]


def compared(runs: Runs, pairs: Sequence[tuple[Choice, Choice]]) -> list[str]:
    """Return the differences of pairs as a Markdown table: p is over tasks, `worst` is the task that loses most."""
    shown = ["| minus | accuracy | ECE | NLL | worst task's ECE | ECE elsewhere | NLL elsewhere | worst elsewhere |"]
    shown += ["|" + "---|" * 8]
    for first, second in pairs:
        inside, outside = difference(runs, first, second, "away")
        cells = [_told(inside, figure) for figure in ("accuracy", "ece", "nll")] + [f"{inside['ece'][4].max():+.2f}"]
        cells += [_told(outside, figure) for figure in ("ece", "nll")] + [f"{outside['ece'][4].max():+.2f}"]
        shown.append(f"| {METHODS[second]} | {' | '.join(cells)} |")
    return shown


def _told(found: Mapping[str, Any], figure: str) -> str:
    (point, low, high, chance, _), digits = found[figure], 4 if figure == "nll" else 2
    by_tasks = "" if np.isnan(chance) else f", p = {chance:.3f}"
    return f"{point:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{by_tasks}"


def _head(data: str, figure: str) -> str:
    name = {"accuracy": "accuracy", "brier": "Brier"}.get(
        figure, figure.upper().replace("DEBIASED_ECE", "debiased ECE")
    )
    return name if data == "test" else f"{name} elsewhere"


def fallen_back(runs: Runs, tasks: Sequence[str]) -> list[str]:
    """Return by how many standard errors plain runs beat guessing on dev, and whether that is enough."""
    shown = ["| task | standard errors beyond guessing, by seed | falls back |", "|---|---|---|"]
    for task in tasks:
        found = [beyond_guessing(sets["dev"]) for sets in list(runs[task, "erm", RAW].values())[:SEEDS]]
        count = sum(value <= ERRORS for value in found)
        shown.append(f"| {task} | {', '.join(f'{value:.1f}' for value in found)} | {count} of {len(found)} |")
    return shown


if __name__ == "__main__":
    main()
