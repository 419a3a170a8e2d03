"""Decisions about samples, made in the page of a data map: keep, relabel or drop, applied to their table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmix.data.delimited import guarded
from calmix.data.examples import Examples
from calmix.data.keys import same_label
from calmix.data.origin import Origin, closest, listed, shown
from calmix.data.remembering import role_names
from calmix.data.tables import format_of, read_table
from calmix.errors import InputError

__all__ = ["Applied", "Decision", "apply_decisions", "decided_columns", "read_decisions"]

ACTIONS = ("keep", "relabel", "drop")


@dataclass(frozen=True)
class Decision:
    """What to do with the sample in a row of the examples; `label` is the new class of one that is relabelled."""

    row: int
    action: str
    label: int | None = None


@dataclass(frozen=True, eq=False)
class Applied:
    """A table with decisions applied, and how many there were of each kind."""

    table: pa.Table
    kept: int
    relabelled: int
    dropped: int


def decided_columns(path: str | Path) -> dict[str, str]:
    """Return the columns that were named for the map whose page wrote these decisions, by what they hold."""
    table = read_table(path)
    told = _texts(table, "columns")[:1]
    try:
        return role_names(json.loads(told[0])) if told else {}
    except (ValueError, RecursionError):
        return {}


def read_decisions(path: str | Path, examples: Examples) -> list[Decision]:
    """Return the decisions in a table with the columns `id`, `decision`, and `new_label` where one is relabelled.

    A column `label` tells what each label was: decisions about another state of the data are refused. The `'` that
    guards a spreadsheet against formulas is taken off again.
    """
    table = read_table(path)
    origin = Origin(str(path), header=format_of(path)[0] in ("csv", "tsv"))
    missing = [name for name in ("id", "decision") if name not in table.column_names]
    if missing:
        raise origin.error(f"has no column {listed(missing)}; give the decisions that the page downloads")
    columns = {name: _texts(table, name) for name in ("id", "label", "decision", "new_label")}
    rows = _spellings(examples.ids)
    names = examples.label_names
    if examples.choice_counts is not None:
        names = tuple(map(str, range(int(examples.choice_counts.max()))))
    classes = _spellings(names)
    found: dict[int, Decision] = {}
    for k, (id_, before, action, after) in enumerate(zip(*columns.values(), strict=True)):
        where = origin.row(k)
        row = _resolved(id_, rows, f"the id {shown(id_)} at {where}", origin)
        if row is None:
            raise origin.error(
                f"the id {shown(id_)} at {where} is not in {examples.source or 'the data'}: give the table that was "
                "mapped, with the same --id and --text"
            )
        if action.strip().lower() not in ACTIONS:
            raise origin.error(f"the decision {shown(action)} at {where} is none of {', '.join(ACTIONS)}")
        given = _resolved(before, classes, f"the label {shown(before)} at {where}", origin) if before else None
        label = names[examples.labels[row]]
        # A map may have made one of labels that the table still spells in several ways.
        if before and (given is None or same_label(names[given]) != same_label(label)):
            raise origin.error(
                f"{where} says that {shown(id_)} is labelled {shown(before)}, but it is {shown(label)}: "
                "these decisions are about another state of the data, or another --label"
            )
        decision = Decision(row, action.strip().lower())
        if decision.action == "relabel":
            label_ = _resolved(after, classes, f"the new label {shown(after)} at {where}", origin)
            if label_ is None:
                raise origin.error(
                    f"the new label {shown(after)} at {where} is none of the data's{closest(after, names)} "
                    f"(known: {listed(names)})"
                )
            decision = Decision(row, "relabel", label_)
        if found.setdefault(row, decision) != decision:
            raise origin.error(f"the id {shown(id_)} at {where} was decided differently before")
    return list(found.values())


def apply_decisions(table: pa.Table, examples: Examples, decisions: Sequence[Decision], *, label: str) -> Applied:
    """Return the table the examples came from, row by row, without what is dropped and with new labels in `label`.

    Labels are written as the table writes them: a class whose other rows say 1 gets a 1, not "1".
    """
    _check_choices(examples, decisions)
    relabelled = {d.row: d.label for d in decisions if d.action == "relabel" and d.label is not None}
    dropped = {d.row for d in decisions if d.action == "drop"}
    if relabelled:
        cells = table[label].to_pylist()
        spelt = {k: _cell(k, cells, examples) for k in set(relabelled.values())}
        for row, k in relabelled.items():
            cells[row] = spelt[k]
        place = table.column_names.index(label)
        table = table.set_column(place, table.schema.field(label), pa.array(cells, table.schema.field(label).type))
    stay = np.setdiff1d(np.arange(table.num_rows), list(dropped))
    kept = sum(d.action == "keep" for d in decisions)
    return Applied(table.take(pa.array(stay, pa.int64())), kept, len(relabelled), len(dropped))


def _check_choices(examples: Examples, decisions: Sequence[Decision]) -> None:
    counts = examples.choice_counts
    for decision in decisions if counts is not None else ():
        if decision.label is not None and counts is not None and decision.label >= counts[decision.row]:
            id_ = shown(examples.ids[decision.row])
            raise InputError(f"the sample {id_} has no choice {decision.label}: it has {counts[decision.row]}, from 0")


def _cell(label: int, cells: list[Any], examples: Examples) -> Any:
    """Return how the table writes a label: as in another row that has it, or, of choices, as it writes the others."""
    rows = np.flatnonzero(examples.labels == label)
    if len(rows):
        return cells[rows[0]]
    if not isinstance(cells[0], str):
        return type(cells[0])(label)
    return chr(ord("A") + label) if cells[0].strip().isalpha() else str(label)


def _texts(table: pa.Table, name: str) -> list[str]:
    if name not in table.column_names:
        return [""] * table.num_rows
    return ["" if cell is None else str(cell) for cell in table[name].to_pylist()]


def _spellings(names: Sequence[str]) -> dict[str, list[int]]:
    """Return where each name is, under every spelling a CSV may give it: as it is, and guarded."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        for spelling in {name, guarded(name)}:
            found.setdefault(spelling, []).append(place)
    return found


def _resolved(text: str, known: Mapping[str, list[int]], what: str, origin: Origin) -> int | None:
    places = known.get(text, [])
    if len(places) > 1:
        raise origin.error(f"{what} could be one of two, with and without the ' in front; rename one")
    return places[0] if places else None
