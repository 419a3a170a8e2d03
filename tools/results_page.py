"""Write docs/results.md from the outcomes of the studies: `python tools/results_page.py [--from FOLDER]`.

With `--from`, the outcomes of studies under FOLDER (FOLDER/NAME is the `--out` of studies/NAME.toml) are taken
into `results/NAME` first, as far as they are not pictures or said twice: `study.md`, the figures of all runs
(`study.parquet`), the tables with their tests (`tables.parquet`), what was asked and made (`about.json`).

The page begins with `results/summary.md`. Of each study it has what is said about it in `results/NAME/verdict.md`, and
the tables that the papers have, accuracy and ECE, in which a paper's figures stand beside ours; the others are in
`study.md`.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from calmix.data import read_table, write_json, write_table, write_text
from calmix.report.titles import model_title

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Results

The papers' tables, asked again with small networks and the training sizes that are stated. A figure in round brackets is the paper's, one in square brackets the 95 % interval of a difference (of the tables' bootstrap, if nothing else is said). Every section says which command made it; NLL, Brier score, debiased ECE, AURC and the rest are in `results/NAME/study.md`, the figures of single runs in `results/NAME/study.parquet`. Runs were made on one NVIDIA H200 if nothing else is said, several at a time, so that their training seconds cannot be compared.
"""  # noqa: E501
TAKEN = ("Accuracy (%)", "MCC", "ECE (%)")
"""The tables, by their headings, that are on the page."""
TAKEN_OF = {"p5": (*TAKEN, "OE (%)")}
"""The same, of papers that have others."""
APART = ("heads",)
"""Studies that are no paper's: `results/NAME/README.md` is their page."""


def take(name: str, outcome: Path, folder: Path) -> None:
    """Take the outcome of a study into the folder of its results."""
    found = json.loads((outcome / "study.json").read_text(encoding="utf-8"))
    about = {key: value for key, value in found.items() if key not in ("rows", "tables")}
    # A model may be a folder, of which no more than the name is of interest elsewhere.
    about["study"]["models"] = [Path(model).name for model in about["study"]["models"]]
    for run in about["runs"]:
        run["model"] = Path(run["model"]).name
    write_json(folder / "about.json", about)
    write_text(folder / "study.md", (outcome / "study.md").read_text(encoding="utf-8"))
    for file in ("study.parquet", "tables.parquet"):
        table = read_table(outcome / file)
        names = pa.array([Path(model).name for model in table["model"].to_pylist()])
        write_table(table.set_column(table.column_names.index("model"), "model", names), folder / file)
    print(f"results/{name}: {sum(run['status'] == 'finished' for run in found['runs'])} runs")


def section(name: str, folder: Path) -> str:
    """Return one study's part of the page."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    title, _, body = (folder / "study.md").read_text(encoding="utf-8").partition("\n")
    head, *tables = body.split("\n## ")
    models = ", ".join(model_title(model) for model in about["study"]["models"])
    made = f"`calmix study studies/{name}.toml --out {name}`, {models}, seeds "
    made += f"{', '.join(map(str, about['study']['seeds']))}; calmix {about['calmix']}, "
    places = [f"torch {found['torch']}{_place(found)}" for found in about["made_with"]]
    if len(places) > 1:
        places = [f"{found['runs']} runs with {p}" for found, p in zip(about["made_with"], places, strict=True)]
    made += "; ".join(places)
    verdict = folder / "verdict.md"
    said = verdict.read_text(encoding="utf-8").strip() if verdict.is_file() else ""
    taken = TAKEN_OF.get(name.partition("-")[0], TAKEN)
    # Of several models each has its own: "ECE (%) · vgg16".
    shown = [f"### {t.strip()}" for t in tables if t.partition("\n")[0].partition(" · ")[0] in taken]
    return "\n\n".join(
        [f"## {title.removeprefix('# ')}", f"{made}.", *([said] if said else []), head.strip(), *shown, ""]
    )


def _place(found: dict[str, Any]) -> str:
    """Return what runs were made on; those of the first versions did not write down their GPU."""
    if "gpu" in found:
        return f" on {found['gpu']}"
    word = " on an H200, by our word: the first versions did not write down the GPU"
    return f" on {found['machine']}" if "+cpu" in found["torch"] else word


def counted(folders: Sequence[Path]) -> str:
    """Return in how many columns of all tables a single model differs from plain training, and five are the best."""
    differ: Counter[tuple[str, bool, str]] = Counter()
    columns: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for folder in folders:
        baseline = json.loads((folder / "about.json").read_text(encoding="utf-8"))["study"]["baseline"]
        for row in read_table(folder / "tables.parquet").to_pylist():
            place = (folder, row["model"], row["setting"], row["task"], row["data"], row["scaled"], row["figure"])
            columns.setdefault(place, []).append(row)
            if row["difference"] is not None and baseline == "erm" and not row["method"].startswith("5 ×"):
                verdict = "same" if not row["stands"] else "lower" if row["difference"] < 0 else "higher"
                differ[row["figure"], row["scaled"], verdict] += 1
    wanted = [rows for place, rows in columns.items() if place[-2:] == (True, "nll")]
    best = sum(min(rows, key=lambda row: row["mean"])["method"].startswith("5 ×") for rows in wanted)
    parts = []
    for figure, scaled, words in (("ece", False, "Before temperature scaling, ECE"), ("ece", True, "After it, ECE"),
                                  ("nll", True, "and NLL")):  # fmt: skip
        lower, higher = differ[figure, scaled, "lower"], differ[figure, scaled, "higher"]
        parts.append(f"{words} is clearly lower in {lower} and clearly higher in {higher}")
    total = sum(differ["ece", False, verdict] for verdict in ("same", "lower", "higher"))
    return (
        f"**Counted.** The papers' tables below compare a method of one model with plain training {total} times. "
        f"{parts[0]} of these. {parts[1]}, {parts[2]}. Of {len(wanted)} columns of NLL after scaling, five plain runs "
        f"averaged are the best in {best}.\n"
    )


def main(root: Path = ROOT, outcomes: Path | None = None) -> None:
    """Write the page."""
    names = sorted(path.stem for path in (root / "studies").glob("*.toml"))
    for name in names if outcomes is not None else ():
        if (outcomes / name / "study.json").is_file():
            take(name, outcomes / name, root / "results" / name)
    there = [name for name in names if name not in APART and (root / "results" / name / "about.json").is_file()]
    if not there:
        sys.exit("no study has an outcome in results/ yet")
    summary = root / "results" / "summary.md"
    parts = [summary.read_text(encoding="utf-8")] if summary.is_file() else []
    parts.append(counted([root / "results" / name for name in there]))
    parts += [section(name, root / "results" / name) for name in there]
    write_text(root / "docs" / "results.md", HEAD + "\n" + "\n".join(parts))
    print(f"docs/results.md: {', '.join(there)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="outcomes", type=Path, help="folder with the --out folders of studies")
    main(outcomes=parser.parse_args().outcomes)
