"""What the runs of rivals come to: tables by task, averages, and paired intervals, as one page."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rival_tasks import IN_DOMAIN, OTHER_DOMAINS, TASKS

KEY = ("task", "rival", "seed", "model", "rows", "dev_rows", "test_rows", "device")
FIGURES = ("accuracy", "nll", "ece")
ORDER = ("tfidf", "frozen", "setfit", "trainer", "calmix-0.1.0", "calmix")
BINS = 15
DRAWS = 1000
FEW = (4, 8, 16, 32)
SMALL = 1000
"""Test sets with fewer rows are also judged together."""
COSTS = ("desk", "trec6", "ag_news", "snli", "few-ag_news-8", "few-trec6-8")
"""The tasks whose seconds are shown."""

Run = dict[str, Any]
Place = tuple[str, str]
"""A task, and which of its sets: `test` or another domain."""
Draws = NDArray[np.float64]


def key_of(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what makes a run another one."""
    return tuple(run[part] for part in KEY)


def read_runs(folder: Path) -> list[Run]:
    """Return all runs in a folder's files; of runs that were made twice, the later one."""
    found: dict[tuple[Any, ...], Run] = {}
    for file in sorted(folder.glob("runs*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            found[key_of(run)] = run
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Results:
    """Runs of one model, by task, rival and seed, and where their predictions lie."""

    runs: Mapping[tuple[str, str], Mapping[int, Run]]
    predictions: Path | None = None

    @classmethod
    def of(cls, runs: Iterable[Run], predictions: Path | None = None) -> "Results":
        """Return runs in order; made on two kinds of machine, the GPU's count, where their figures are concerned."""
        found: dict[tuple[str, str], dict[int, Run]] = {}
        for run in sorted(runs, key=lambda run: run["device"]):
            found.setdefault((run["task"], run["rival"]), {})[run["seed"]] = run
        return cls(found, predictions)

    @cached_property
    def rivals(self) -> list[str]:
        """Who is there; variants last."""
        names = {rival for _, rival in self.runs}
        return [name for name in ORDER if name in names] + sorted(names - set(ORDER))

    def values(self, place: Place, rival: str, figure: str, stage: str = "calibrated") -> list[float]:
        """Return a figure of every seed."""
        task, part = place
        runs = self.runs.get((task, rival), {})
        return [run["figures"][part][stage][figure] for _, run in sorted(runs.items()) if part in run["figures"]]

    def mean(self, place: Place, rival: str, figure: str, stage: str = "calibrated") -> float | None:
        """Return a figure's mean over seeds; None where there is no run."""
        values = self.values(place, rival, figure, stage)
        return float(np.mean(values)) if values else None

    def size(self, place: Place) -> int:
        """Return how many rows of a set are judged; 0 where there is no run."""
        task, part = place
        found = (run["figures"] for (name, _), runs in self.runs.items() if name == task for run in runs.values())
        return next((int(figures[part]["n"]) for figures in found if part in figures), 0)


@dataclass(frozen=True)
class Group:
    """Sets that are averaged, and what each counts."""

    name: str
    weights: Mapping[Place, float]


def groups(results: Results) -> list[Group]:
    """Return the averages that are made, of sets that anybody was judged on."""
    inside = {(task, "test"): weight for task, weight in IN_DOMAIN.items()}
    few_classes = {place: weight for place, weight in inside.items() if not place[0].startswith("clinc150")}
    larger = {place: weight for place, weight in few_classes.items() if place[0] not in ("rte", "swag")}
    many = {place: weight for place, weight in inside.items() if place not in few_classes}
    small = {place: weight for place, weight in inside.items() if 0 < results.size(place) < SMALL}
    found = [
        Group("all", inside),
        Group("up to 30 classes", few_classes),
        Group("these without RTE and SWAG", larger),
        Group("clinc150", many),
        Group(f"fewer than {SMALL:,} test rows", small),
        *(Group(f"{rows} a class", _few(lambda task, rows=rows: task.per_class == rows)) for rows in FEW),
        Group("8 and 16 a class", _few(lambda task: task.per_class in (8, 16))),
        Group("other domains", dict.fromkeys(OTHER_DOMAINS, 1.0)),
    ]
    return [group for group in found if any(results.size(place) for place in group.weights)]


def _few(wanted: Callable[[Any], bool]) -> dict[Place, float]:
    return {(name, "test"): 1.0 for name, task in TASKS.items() if task.few and wanted(task)}


def average(results: Results, group: Group, rival: str, figure: str, stage: str = "calibrated") -> float | None:
    """Return the weighted mean of a figure; None unless the rival has met all of the group."""
    values = [results.mean(place, rival, figure, stage) for place in group.weights]
    if any(value is None for value in values):
        return None
    return float(np.average(np.array(values, dtype=np.float64), weights=list(group.weights.values())))


def nll_ratio(results: Results, group: Group, rival: str, base: str, stage: str = "calibrated") -> float | None:
    """Return the weighted geometric mean of NLL over the calibrated base's; None unless both have met all of it."""
    both = [(results.mean(p, rival, "nll", stage), results.mean(p, base, "nll")) for p in group.weights]
    if any(mine is None or theirs is None for mine, theirs in both):
        return None
    ratios = [np.log(mine / theirs) for mine, theirs in both]  # type: ignore[operator]
    return float(np.exp(np.average(ratios, weights=list(group.weights.values()))))


class Resampled:
    """Figures of the same resamples of rows and seeds, for everybody who was judged on a set."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.known: dict[tuple[Place, str, tuple[int, ...]], tuple[dict[str, float], dict[str, Draws]]] = {}

    def of(self, place: Place, rival: str, seeds: tuple[int, ...]) -> tuple[dict[str, float], dict[str, Draws]]:
        """Return each figure of a rival, calibrated, and its value in every draw."""
        known = (place, rival, seeds)
        if known not in self.known:
            self.known[known] = self._drawn(place, rival, seeds)
        return self.known[known]

    def _drawn(self, place: Place, rival: str, seeds: tuple[int, ...]) -> tuple[dict[str, float], dict[str, Draws]]:
        assert self.results.predictions is not None
        task, part = place
        runs = self.results.runs[task, rival]
        tables = [read_predictions(self.results.predictions, runs[seed], part) for seed in seeds]
        labels = [np.asarray(table["label"]) for table in tables]
        columns = [per_row(table) for table in tables]
        rows = len(labels[0])
        # The draws of a set are the same for everybody: that is what pairs them.
        generator = np.random.default_rng([rows, len(seeds)])
        drawn = generator.multinomial(rows, np.full(rows, 1 / rows), DRAWS).astype(np.float32) / rows
        counted = generator.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), DRAWS) / len(seeds)
        whole = np.full((1, rows), 1 / rows, dtype=np.float32)
        estimates = [figures_of(whole @ column) for column in columns]
        draws = [figures_of(drawn @ column) for column in columns]
        return (
            {figure: float(np.mean([values[figure] for values in estimates])) for figure in FIGURES},
            {figure: (np.stack([values[figure] for values in draws], axis=1) * counted).sum(1) for figure in FIGURES},
        )


def per_row(table: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return, for each row, whether it is right, its NLL, and its gap between confidence and truth, by bin."""
    hit = (table["label"] == table["winner"]).astype(np.float64)
    confidence = np.exp(table["winner_calibrated"].astype(np.float64))
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.zeros((len(hit), BINS))
    gaps[np.arange(len(hit)), bins] = confidence - hit
    return np.column_stack([hit, -table["label_calibrated"].astype(np.float64), gaps]).astype(np.float32)


def figures_of(sums: NDArray[np.float32]) -> dict[str, Draws]:
    """Return the figures of each draw from weighted sums over rows."""
    return dict(zip(FIGURES, (sums[:, 0], sums[:, 1], np.abs(sums[:, 2:]).sum(axis=1)), strict=True))


def read_predictions(folder: Path, run: Run, part: str) -> dict[str, NDArray[Any]]:
    """Return the predictions of one set of a run."""
    table = pq.read_table(folder / ("--".join(str(run[name]) for name in KEY) + ".parquet"))
    chosen = np.flatnonzero(np.asarray(table["set"].to_numpy() == part))
    return {name: table[name].to_numpy()[chosen] for name in table.column_names if name != "set"}


@dataclass(frozen=True)
class Difference:
    """A figure minus another's, or over it, and the interval that holds 95 % of it."""

    value: float
    low: float
    high: float


def differences(resampled: Resampled, group: Group, rival: str, base: str) -> dict[str, Difference] | None:
    """Return how a rival differs from another one: accuracy and ECE as differences, NLL as a ratio.

    Rows and seeds are resampled in pairs, each set on its own; intervals are percentiles, moved by the resampling's
    bias. None unless both have met all of the group, and their predictions are there.
    """
    runs, weights = resampled.results.runs, np.array(list(group.weights.values()))
    values: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    draws: dict[str, list[Draws]] = {figure: [] for figure in FIGURES}
    for task, part in group.weights:
        seeds = tuple(sorted(set(runs.get((task, rival), {})) & set(runs.get((task, base), {}))))
        if not seeds or resampled.results.predictions is None:
            return None
        try:
            both = [resampled.of((task, part), name, seeds) for name in (rival, base)]
        except FileNotFoundError:
            return None
        for figure in FIGURES:
            (mine, my_draws), (theirs, their_draws) = ((values[figure], drawn[figure]) for values, drawn in both)
            logs = figure == "nll"
            values[figure].append(float(np.log(mine / theirs)) if logs else mine - theirs)
            draws[figure].append(np.log(my_draws / their_draws) if logs else my_draws - their_draws)
    found = {}
    for figure in FIGURES:
        value = float(np.average(values[figure], weights=weights))
        drawn = np.average(np.stack(draws[figure]), axis=0, weights=weights)
        low, high = np.quantile(drawn, [0.025, 0.975]) - (drawn.mean() - value)
        bounds = (value, float(low), float(high))
        found[figure] = Difference(*(map(float, np.exp(bounds)) if figure == "nll" else bounds))
    return found


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def triple(results: Results, place: Place, rival: str, stage: str = "calibrated") -> str:
    """Return accuracy, NLL and ECE of a rival, or a dash."""
    found = [results.mean(place, rival, figure, stage) for figure in FIGURES]
    if None in found:
        return "–"
    accuracy, nll, ece = (value for value in found if value is not None)
    return f"{100 * accuracy:.1f} · {nll:.3f} · {100 * ece:.1f}"


def by_task(results: Results, places: Sequence[Place], names: Mapping[Place, str]) -> list[str]:
    """Return a table of what each rival reaches on each set, those that nobody met left out."""
    met = [place for place in places if any(results.values(place, rival, "nll") for rival in results.rivals)]
    return grid(
        ["task", *results.rivals],
        ([names[place], *(triple(results, place, rival) for rival in results.rivals)] for place in met),
    )


def averages(results: Results, base: str) -> list[str]:
    """Return a table of the averages, before the temperature and after it."""
    rows = []
    for group in groups(results):
        for rival in results.rivals:
            cells = []
            for stage in ("raw", "calibrated"):
                accuracy = average(results, group, rival, "accuracy", stage)
                ece, ratio = average(results, group, rival, "ece", stage), nll_ratio(results, group, rival, base, stage)
                cells += [
                    f"{100 * accuracy:.1f}" if accuracy is not None else "",
                    f"{ratio:.3f}" if ratio is not None else "–",
                    f"{100 * ece:.1f}" if ece is not None else "",
                ]
            if average(results, group, rival, "accuracy") is not None:
                rows.append([group.name, rival, cells[3], cells[4], cells[5], cells[1], cells[2]])
    head = ["average over", "rival", "accuracy", f"NLL / {base}'s", "ECE", "NLL before", "ECE before"]
    return grid(head, rows)


def compared(results: Results, subject: str, resampled: Resampled) -> list[str]:
    """Return tables of the subject against each rival: averages, then each set."""
    others = [rival for rival in results.rivals if rival != subject]
    each = [Group(_called(place), {place: 1.0}) for place in _places(results)]
    lines = []
    for title, parts in (("Averages", groups(results)), ("Each task", each)):
        rows = []
        for group in parts:
            cells = [_cell(differences(resampled, group, subject, rival)) for rival in others]
            if any(cell != "–" for cell in cells):
                rows.append([group.name, *cells])
        lines += [f"{title}:", "", *grid([f"{subject} against", *others], rows)]
    return lines


def _cell(found: Mapping[str, Difference] | None) -> str:
    if found is None:
        return "–"
    points = [
        f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]" for d in (found["accuracy"], found["ece"])
    ]
    ratio = found["nll"]
    return f"{points[0]} · {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] · {points[1]}"


def costs(results: Sequence[Run]) -> list[str]:
    """Return a table of processor seconds, by machine: to fit, and to predict a thousand rows."""
    here = [run for run in results if run["device"] == "cpu" and run["task"] in COSTS]
    lines = []
    for machine in sorted({run["machine"] for run in here}):
        rows = []
        for task in COSTS:
            for rival in _ordered({run["rival"] for run in here}):
                same = [r for r in here if (r["task"], r["rival"], r["machine"]) == (task, rival, machine)]
                if same:
                    fit = np.mean([run["cpu_seconds"]["fit"] for run in same])
                    predict = np.mean([run["cpu_seconds"]["predict"] / _judged(run) * 1000 for run in same])
                    rows.append([task, f"{same[0]['n_train']:,}", rival, f"{fit:.1f}", f"{predict:.2f}"])
        head = ["task", "training rows", "rival", "seconds to fit", "seconds for 1,000 rows"]
        lines += [f"{machine}:", "", *grid(head, rows)]
    return lines


def _judged(run: Run) -> int:
    return sum(part["n"] for part in run["figures"].values())


def _ordered(names: set[str]) -> list[str]:
    return [name for name in ORDER if name in names] + sorted(names - set(ORDER))


def _places(results: Results) -> list[Place]:
    inside = [(name, "test") for name in TASKS]
    return [place for place in [*inside, *OTHER_DOMAINS, *_extra()] if results.size(place)]


def _extra() -> Iterator[Place]:
    yield from (("swag", "ood-swag-4"), ("hellaswag", "ood-swag-4"))


def _called(place: Place) -> str:
    task, part = place
    return task if part == "test" else f"{task} → {part.removeprefix('ood-')}"


def missing(results: Results, seeds: int) -> list[str]:
    """Return a paragraph that says who was run with fewer seeds than others; nothing where nobody was."""
    found: dict[tuple[str, int], int] = {}
    for (_, rival), runs in results.runs.items():
        if len(runs) < seeds:
            found[rival, len(runs)] = found.get((rival, len(runs)), 0) + 1
    told = [f"{rival} has {have} on {tasks} task{'s' * (tasks > 1)}" for (rival, have), tasks in sorted(found.items())]
    return [f"Not all have {seeds} seeds: {', '.join(told)}.", ""] if told else []


def page(results: Results, runs: Sequence[Run], *, model: str, subject: str, base: str) -> str:
    """Return the page."""
    places = _places(results)
    names = {place: _called(place) for place in places}
    few = [place for place in places if TASKS[place[0]].few]
    inside = [place for place in places if place[1] == "test" and place not in few]
    outside = [place for place in places if place[1] != "test"]
    seeds, first = sorted({run["seed"] for run in runs}), runs[0]
    more = set(results.rivals) - set(ORDER)
    lines = [
        "# Rivals",
        "",
        f"What people do today, on the same rows; encoder {model}, seeds {', '.join(map(str, seeds))}. Written by "
        "`benchmarks/rivals.py table` from `runs*.jsonl`; `benchmarks/rivals.py` says who is who. At most "
        f"{first['rows']:,} training rows, {first['dev_rows']:,} dev rows and {first['test_rows']:,} rows of each set "
        "that is judged on. Seeds draw the training rows, where there are more of them. Many of these data sets are "
        "subsets, or halves, of the official ones: figures are to be compared within this page only.",
        "",
        "Each cell: accuracy in % · NLL · ECE in % (15 bins), with a temperature, means over seeds. It is fitted on "
        "the dev rows, which also choose C of the linear models; calmix fits its own. Where there are few rows nobody "
        "has dev rows: calmix is given the training rows alone, `tfidf` and `frozen` choose C and temperature by five "
        "folds of them, and `trainer` and `setfit` have no temperature.",
        "",
        *missing(results, len(seeds)),
        *(
            ["Others are variants of calmix: see [how the default was chosen](../default/README.md).", ""]
            if more
            else []
        ),
        "## In domain",
        "",
        *by_task(results, inside, names),
        "HellaSWAG, with four choices, counts in no average: its rows are SWAG's other domain.",
        "",
        "## Few rows a class",
        "",
        *by_task(results, few, names),
        "## Other domains",
        "",
        *by_task(results, outside, names),
        "## Averages",
        "",
        "The sizes of clinc150 count as one task. NLL as the geometric mean of its ratios to that of "
        f"{base} after its temperature. A rival that has not met all of them is left out.",
        "",
        *averages(results, base),
    ]
    if subject in results.rivals and results.predictions is not None:
        lines += [
            f"## {subject} against each",
            "",
            "Accuracy in points · NLL as a ratio · ECE in points, each with the 95 % interval of a paired bootstrap "
            f"over rows and seeds ({DRAWS:,} draws).",
            "",
            *compared(results, subject, Resampled(results)),
        ]
    capped = sorted({run["task"] for run in runs if run["chosen"].get("capped")})
    if capped:
        pairs = max(run["chosen"]["pairs"] for run in runs if run["chosen"].get("capped"))
        lines += [f"SetFit's pairs are capped at {pairs:,} on {', '.join(capped)}.", ""]
    lines += ["## Processor seconds", "", "User and system time, without loading libraries.", "", *costs(runs)]
    return "\n".join(lines).rstrip() + "\n"


def written(options: argparse.Namespace) -> None:
    """Write the page of a folder of runs."""
    runs = [run for run in read_runs(options.out) if run["model"] == options.model]
    if not runs:
        raise SystemExit(f"{options.out}: holds no runs of {options.model}")
    sizes = {(run["rows"], run["dev_rows"], run["test_rows"]) for run in runs}
    if len(sizes) > 1:
        raise SystemExit(f"{options.out}: holds runs of different sizes, {sorted(sizes)}: keep them apart")
    results = Results.of(runs, options.predictions if options.predictions.is_dir() else None)
    told = page(results, runs, model=options.model, subject=options.of, base=options.against)
    name = "README.md" if options.model == "minilm" else f"README-{options.model}.md"
    (options.out / name).write_text(told, encoding="utf-8")
    print(told)
