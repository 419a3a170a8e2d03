"""An evaluation on disk: its figures and predictions in a folder, as a run's are."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.data import write_json, write_table
from calmix.training.folder import FinishedRun, begin_run, config_hash, find_run, locked

__all__ = ["SCORES_FILE", "bare_predictions", "evaluation_folder", "record_evaluation", "record_unfamiliar"]

SCORES_FILE = "ood-scores.parquet"
"""Of an evaluation that asked about unfamiliar data: every score of every row."""


def bare_predictions(probs: NDArray[np.float64], labels: NDArray[np.int64], table: pa.Table) -> pa.Table:
    """Return predictions made anywhere, as `read_predictions` gave them, in our own columns."""
    names = [name for name in table.column_names if name.startswith("p_")]
    shown = np.array([n.removeprefix("p_") for n in names] or [str(k) for k in range(probs.shape[1])], dtype=object)
    winner = probs.argmax(axis=1)
    columns: dict[str, Any] = {"id": table["id"]} if "id" in table.column_names else {}
    columns |= {"label": pa.array(shown[labels], pa.string()), "predicted": pa.array(shown[winner], pa.string())}
    columns["confidence"] = probs.max(axis=1)
    if names:
        columns |= {name: probs[:, k] for k, name in enumerate(names)}
    else:
        columns["probs"] = pa.array(list(probs))
    return pa.table(columns)


def evaluation_folder(config: Mapping[str, Any]) -> Path:
    """Return where an evaluation goes when nobody says: the same one goes to the same place."""
    name = re.sub(r"[^\w.-]+", "-", Path(config["model"]).name).strip("-.") or "model"
    return Path("evaluations") / f"{name}-{config_hash(config)}"


def record_evaluation(
    out: Path,
    config: Mapping[str, Any],
    figures: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, pa.Table],
    scores: pa.Table | None = None,
) -> None:
    """Write the figures and predictions of each evaluated file; the same evaluation again is written anew.

    The sets are called by their files' names, and `files` in the figures tells which file each is. `scores` are those
    of familiar and unfamiliar data, where such was asked about.
    """
    names = _names(list(figures))
    with _recording(out, config):
        for file, table in tables.items():
            write_table(table, out / f"predictions-{names[file]}.parquet")
        if scores is not None:
            write_table(scores, out / SCORES_FILE)
        splits = {names[file]: {"after": found} for file, found in figures.items()}
        files = {name: file for file, name in names.items()}
        write_json(out / "metrics.json", {"splits": splits, "files": files})


def record_unfamiliar(
    out: Path, config: Mapping[str, Any], figures: Mapping[str, Any], scores: pa.Table, figures_by_row: pa.Table
) -> None:
    """Write how far unfamiliar data is told from familiar data: all scores, and the figures as JSON and CSV."""
    with _recording(out, config):
        write_table(scores, out / SCORES_FILE)
        write_table(figures_by_row, out / "ood.csv")
        write_json(out / "metrics.json", {"ood": figures})


@contextmanager
def _recording(out: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Hold the folder of an evaluation, new or this very one."""
    with locked(out):
        try:
            if find_run(out, config) is None:
                begin_run(out, config, {})
        except FinishedRun:
            pass
        yield


def _names(files: list[str]) -> dict[str, str]:
    """Return a plain name for each file, all different."""
    names: dict[str, str] = {}
    for file in files:
        plain = re.sub(r"[^\w-]+", "-", Path(file).name.split(".")[0]).strip("-") or "data"
        name, turn = plain, 1
        while name in names.values():
            turn += 1
            name = f"{plain}-{turn}"
        names[file] = name
    return names
