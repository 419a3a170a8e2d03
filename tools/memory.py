"""Show how much GPU memory a study's runs take, beside the estimate: `python tools/memory.py STUDY.toml [--data DIR]`.

The seeds of each configuration are trained in a process of their own, one after the other, into a folder that is
removed; what the GPU has in use is looked at meanwhile, so nobody else should use it. Without a GPU only the estimates
are shown, and nothing is trained. A line of JSON for each configuration: bytes, and what share of the GPU is asked for.
"""

import argparse
import json
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import torch

from calmix.study import Order, Prepared, prepare, work
from calmix.study.fitting import needed_by, share_of
from calmix.study.grid import Spec

# Seconds between two looks at the GPU.
LOOK = 0.05


def train(order: Order, keys: set[str]) -> None:
    """Make some runs of a study, and what they build on."""
    mine = prepare(order)
    work(mine.plan, mine.storage, mine.library, only=keys)


def taken(prepared: Prepared, group: list[Spec]) -> int:
    """Return the most memory that was in use while a group of runs was made, beyond what was before."""
    before = least = torch.cuda.mem_get_info()[0]
    keys = {spec.key for spec in group}
    process = multiprocessing.get_context("spawn").Process(target=train, args=(prepared.order, keys))
    process.start()
    while process.is_alive():
        least = min(least, torch.cuda.mem_get_info()[0])
        process.join(LOOK)
    return before - least


def measured(prepared: Prepared) -> list[dict[str, Any]]:
    """Return what each group of runs was estimated to need and, with a GPU, what it took; printed as it comes."""
    gpu = torch.cuda.is_available()
    total = torch.cuda.mem_get_info()[1] if gpu else None
    rows = []
    for group in prepared.plan.groups:
        spec, estimate = group[0], needed_by(group, prepared.library)
        row: dict[str, Any] = {"task": spec.task, "model": Path(spec.model).name, "recipe": spec.recipe}
        row |= {"seeds": len(group), "estimate": estimate, "share": share_of(estimate, total) if gpu else None}
        row["taken"] = taken(prepared, group) if gpu else None
        row["failed"] = sum(prepared.storage.failure(each.key) is not None for each in group)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def main(words: list[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", action="append", default=[])
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        measured(prepare(Order(given.study, Path(folder) / "out", data=given.data, models=tuple(given.model))))


if __name__ == "__main__":
    main()
