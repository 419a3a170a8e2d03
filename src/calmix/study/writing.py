"""A study's outcome as files: Markdown, LaTeX, CSV, Parquet and JSON."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from calmix._version import __version__
from calmix.data import write_json, write_table, write_text
from calmix.report.titles import DECIMALS, TITLES, model_title
from calmix.study.collecting import figures_table, filter_counts
from calmix.study.grid import Plan
from calmix.study.papers import PaperFigures
from calmix.study.tabulating import Column, Entry, Table
from calmix.study.working import Storage
from calmix.training import json_safe
from calmix.training.folder import read_run, versions

__all__ = ["FORMAT", "column_title", "entries_table", "latex", "markdown", "ranked", "shown", "shown_rank",
           "write_outcome"]  # fmt: skip

FORMAT = 1
"""Of study.json: raised when a reader would have to know."""


def write_outcome(
    out: Path, plan: Plan, storage: Storage, rows: Sequence[Mapping[str, Any]], tables: Sequence[Table]
) -> None:
    """Write all that a study has come to so far to its folder."""
    write_table(figures_table(rows), out / "study.parquet")
    entries = entries_table(tables)
    for kind in ("csv", "parquet"):
        write_table(entries, out / f"tables.{kind}")
    write_text(out / "study.md", markdown(plan, storage, tables))
    write_text(out / "study.tex", latex(tables))
    write_json(out / "study.json", _everything(plan, storage, rows, tables))


def shown(figure: str, entry: Entry | None) -> str:
    """Return mean ± spread as a reader wants it: percent where it is a share."""
    if entry is None:
        return "–"
    if not math.isfinite(entry.mean):
        return "not finite"
    factor, decimals = (1, DECIMALS[figure]) if figure in DECIMALS else (100, 2)
    value = f"{factor * entry.mean:.{decimals}f}"
    return value if math.isnan(entry.spread) else f"{value} ± {factor * entry.spread:.{decimals}f}"


def column_title(column: Column) -> str:
    """Return a column's heading: the task, or → another domain, and whether its temperature was fitted."""
    place = column.task if column.data == "test" else f"{column.task} → {column.data.removeprefix('ood-')}"
    return f"{place}{' (MCC)' if column.figure == 'mcc' else ''}{' +TS' if column.scaled else ''}"


def ranked(table: Table) -> dict[bool, str]:
    """Return the headings of the average ranks that a table has: of figures before, and after temperature scaling."""
    titles = {False: "rank", True: "rank +TS"}
    return {scaled: title for scaled, title in titles.items() if any(scaled == key[1] for key in table.ranks)}


def shown_rank(table: Table, method: str, scaled: bool) -> str:
    """Return a method's average rank as a reader wants it."""
    return f"{table.ranks[method, scaled]:.1f}" if (method, scaled) in table.ranks else "–"


def markdown(plan: Plan, storage: Storage, tables: Sequence[Table]) -> str:
    """Return the study as a page."""
    study = plan.study
    done = sum(storage.finished(key) for key in plan.runs)
    failed = {key: found for key in plan.runs if not storage.finished(key) and (found := storage.failure(key))}
    spread = "standard deviation" if study.spread == "std" else "standard error"
    lines = [f"# {_line(study.title)}", ""]
    lines += [f"{study.note}", ""] if study.note else []
    lines += [
        f"{done} of {len(plan.runs)} runs are finished{f', {len(failed)} failed' if failed else ''}. "
        f"Mean ± {spread} over {len(study.seeds)} seeds; calibration errors over {study.bins} bins. "
        f"+TS: after temperature scaling, fitted on dev data. "
        f"* differs from {_line(study.baseline)} (95 % interval of a paired bootstrap over seeds and test rows "
        "excludes 0; not corrected for the number of comparisons). Bold: the best of its column, and it differs.",
        "",
    ]
    for table in tables:
        lines += [f"## {_heading(table, study.models)}", ""]
        lines += _grid(
            table, "**{}**".format, lambda cells: f"| {' | '.join(cells)} |", bar="| --- " * 99, escape=_line
        )
        lines.append("")
        if study.paper is not None:
            lines += _beside(table, study.paper)
    lines += _filters(filter_counts(plan, storage))
    if failed:
        lines += ["## Runs that failed", ""]
        lines += [f"- {f['task']}, {f['recipe']}, seed {f['seed']}: {_line(f['error'])}" for f in failed.values()]
        lines.append("")
    return "\n".join(lines)


def _filters(counts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many samples the AUM filters dropped, as a list."""
    if not counts:
        return []
    lines = ["## What the AUM filters dropped", ""]
    for one in counts:
        place = f"{one['task']}, {_line(model_title(one['model']))}, seed {one['seed']}"
        share = f"{one['dropped']:,} of {one['judged']:,} {one['region']} samples"
        heed = "" if one["dropped"] else ": these rows are trained as without a filter"
        lines.append(f"- {_line(', '.join(one['methods']))} ({place}): {share}{heed}")
    return [*lines, ""]


def _beside(table: Table, paper: PaperFigures) -> list[str]:
    """Return a table of our figures with the paper's in brackets, for the cells that the paper has."""
    reported = {
        (method, column): Entry(*paper.values[key], 0)
        for method in dict.fromkeys((*table.methods, *(key[0] for key in paper.values)))
        for column in table.columns
        if (key := (method, column.task, column.data, column.figure, column.scaled)) in paper.values
    }
    columns = [column for column in table.columns if any(column == other for _, other in reported)]
    if not columns:
        return []
    lines = [f"Beside the paper's {_line(paper.model)}, in brackets:", ""]
    lines += [f"| method | {' | '.join(_line(column_title(column)) for column in columns)} |"]
    lines += ["| --- " * (1 + len(columns)) + "|"]
    for method in dict.fromkeys(method for method, _ in reported):
        cells = []
        for column in columns:
            ours, theirs = (shown(column.figure, found.get((method, column))) for found in (table.entries, reported))
            cells.append(f"{ours} ({theirs})")
        lines.append(f"| {_line(method)} | {' | '.join(cells)} |")
    return [*lines, ""]


def latex(tables: Sequence[Table]) -> str:
    """Return the tables as LaTeX (booktabs)."""
    parts = []
    for table in tables:
        width = len(_titles(table))
        body = _grid(table, r"\textbf{{{}}}".format, lambda cells: " & ".join(cells) + r" \\", escape=_tex)
        lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
        lines += [body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\caption{{{_tex(_heading(table, [table.model, '']))}}}", r"\end{table}", ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def entries_table(tables: Sequence[Table]) -> pa.Table:
    """Return every mean as a row of its own, with its difference from the baseline."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        for (method, column), entry in table.entries.items():
            against = entry.difference
            rows.append(
                {
                    "model": table.model,
                    "setting": table.setting,
                    "task": column.task,
                    "data": column.data,
                    "scaled": column.scaled,
                    "figure": column.figure,
                    "method": method,
                    "mean": entry.mean,
                    "spread": entry.spread,
                    "seeds": entry.seeds,
                    "difference": None if against is None else against.estimate,
                    "low": None if against is None else against.low,
                    "high": None if against is None else against.high,
                    "stands": None if against is None else against.stands,
                    "best": entry.best,
                    "rank": table.ranks.get((method, column.scaled)),
                }
            )
    names = ("model", "setting", "task", "data", "scaled", "figure", "method", "mean", "spread", "seeds", "difference",
             "low", "high", "stands", "best", "rank")  # fmt: skip
    text = ("model", "setting", "task", "data", "figure", "method")
    kinds = {**dict.fromkeys(text, pa.string()), "seeds": pa.int64()}
    kinds |= dict.fromkeys(("scaled", "stands", "best"), pa.bool_())
    return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name, pa.float64())) for name in names})


def _everything(
    plan: Plan, storage: Storage, rows: Sequence[Mapping[str, Any]], tables: Sequence[Table]
) -> dict[str, Any]:
    study = plan.study
    runs = []
    for key, spec in plan.runs.items():
        failure = None if storage.finished(key) else storage.failure(key)
        status = "finished" if storage.finished(key) else "failed" if failure else "open"
        about: dict[str, Any] = {
            "key": key,
            "what": spec.what,
            "task": spec.task,
            "model": spec.model,
            "recipe": spec.recipe,
        }
        about |= {"options": dict(spec.options), "training": dict(spec.training), "seed": spec.seed}
        about |= {"subset": spec.subset or None, "filtered": spec.filtered, "online": spec.online}
        about |= {"needs": {name: needed.key for name, needed in spec.needs.items()}, "status": status}
        runs.append({**about, "error": failure["error"] if failure else None})
    asked = {
        "title": study.title,
        "note": study.note,
        "tasks": [task.name for task in study.tasks],
        "models": list(study.models),
        "methods": [asdict(method) for method in study.methods],
        "settings": {name: dict(values) for name, values in study.settings.items()},
        "seeds": list(study.seeds),
        "baseline": study.baseline,
        "bins": study.bins,
        "spread": study.spread,
        "figures": list(study.figures),
    }
    return {
        "format": FORMAT,
        "calmix": __version__,
        "versions": versions(),
        "made_with": _made_with(plan, storage),
        "study": json_safe(asked),
        "runs": json_safe(runs),
        "filters": json_safe(filter_counts(plan, storage)),
        "rows": json_safe([dict(row) for row in rows]),
        "tables": json_safe(entries_table(tables).to_pylist()),
    }


def _made_with(plan: Plan, storage: Storage) -> list[dict[str, Any]]:
    """Return what the finished runs were made with: each set of versions once, that of most runs first."""
    sets: Counter[tuple[tuple[str, str], ...]] = Counter()
    for key in plan.runs:
        if storage.finished(key):
            sets[tuple(read_run(storage.folder(key)).get("versions", {}).items())] += 1
    return [{**dict(found), "runs": count} for found, count in sets.most_common()]


def _heading(table: Table, models: Sequence[str]) -> str:
    parts = [TITLES[table.figure]]
    parts += [model_title(table.model)] if len(models) > 1 else []
    parts += [table.setting] if table.setting else []
    return _line(" · ".join(parts))


def _titles(table: Table) -> list[str]:
    return ["method", *map(column_title, table.columns), *ranked(table).values()]


def _grid(
    table: Table,
    bold: Callable[[str], str],
    join: Callable[[list[str]], str],
    *,
    escape: Callable[[str], str],
    bar: str = "",
) -> list[str]:
    """Return the lines of a table: heading, bar, one line per method."""
    titles = _titles(table)
    lines = [join([escape(title) for title in titles])]
    lines += [bar[: len("| --- ") * len(titles)] + "|"] if bar else []
    for method in table.methods:
        cells = [escape(method)]
        for column in table.columns:
            entry = table.entries.get((method, column))
            text = escape(shown(column.figure, entry))
            if entry is not None and entry.difference is not None and entry.difference.stands:
                text += escape("*") if not bar else r"\*"
            cells.append(bold(text) if entry is not None and entry.best else text)
        cells += [shown_rank(table, method, scaled) for scaled in ranked(table)]
        lines.append(join(cells))
    return lines


def _line(text: str) -> str:
    """Return text as one line in which a Markdown table finds no column."""
    return " ".join(str(text).split()).replace("|", r"\|")


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"} | {"±": r"$\pm$", "→": r"$\rightarrow$", "×": r"$\times$", "–": "--"}
    return "".join(special.get(c, c) for c in " ".join(text.split()))
