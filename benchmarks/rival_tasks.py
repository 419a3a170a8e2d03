"""The tasks that rivals meet on: which rows are learnt from, chosen by and judged on, for every task, size and seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.data.gathering import TaskSets, gather, sampled
from calmix.data.tasks import parse_task

# Which rows are judged on is one draw for everybody.
_SEED = 0

_DATA: dict[str, dict[str, Any]] = {
    "desk": {
        "shipped": True,
        "train": "desk-train",
        "dev": "desk-dev",
        "test": "desk-test",
        "ood": {"colloquial": "desk-ood"},
    },
    "trec6": {"train": "trec6/train", "test": "trec6/test"},
    "ag_news": {"train": "ag_news/train", "dev": "ag_news/dev", "test": "ag_news/test"},
    "sst2": {
        "train": "sst2/train",
        "dev": "sst2/dev",
        "test": "sst2/test",
        "ood": {"yelp": "yelp_polarity/test"},
    },
    "goemotions": {"train": "goemotions/train", "dev": "goemotions/dev", "test": "goemotions/test"},
    "cola": {
        "train": "cola/train",
        "test": "cola/dev_in_domain",
        "ood": {"other-sources": "cola/dev_out_of_domain"},
    },
    "rte": {"train": "rte/train", "test": "rte/dev"},
    "qqp": {
        "train": "qqp/train",
        "dev": "qqp/dev",
        "test": "qqp/test",
        "ood": {
            "twitterppdb": {
                "file": "twitterppdb/test",
                "labels": {"duplicate": ["paraphrase"], "not_duplicate": ["not_paraphrase"]},
            }
        },
    },
    "snli": {"train": "snli/train", "dev": "snli/dev", "test": "snli/test", "ood": {"mnli": "mnli/test"}},
    "swag": {
        "train": "swag_2choice/train",
        "dev": "swag_2choice/dev",
        "test": "swag_2choice/test",
        "ood": {"hellaswag": "hellaswag/test", "swag-4": "swag/val500"},
    },
    "yelp": {
        "train": "yelp_polarity/train",
        "dev": "yelp_polarity/dev",
        "test": "yelp_polarity/test",
        "ood": {"sst2": "sst2/test"},
    },
    "clinc150": {"train": "clinc150/train", "dev": "clinc150/dev", "test": "clinc150/test"},
    "hellaswag": {"train": "hellaswag/dev", "test": "hellaswag/test", "ood": {"swag-4": "swag/val500"}},
}


@dataclass(frozen=True)
class Task:
    """A data set, how much of it is learnt from, and whether there are dev rows."""

    name: str
    data: str
    per_class: int = 0
    """Rows of each class; 0 takes as many as there are, up to the limit."""
    few: bool = False
    """Nobody has dev rows, and other domains are not looked at."""


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *(Task(name, name) for name in _DATA if name != "clinc150"),
        *(Task(f"clinc150-{rows}", "clinc150", rows) for rows in (8, 15, 30, 50)),
        *(
            Task(f"few-{name}-{rows}", name, rows, few=True)
            for name in ("ag_news", "trec6", "sst2", "clinc150")
            for rows in (4, 8, 16, 32)
        ),
    )
}

IN_DOMAIN = {name: 0.25 if name.startswith("clinc150") else 1.0 for name, task in TASKS.items() if not task.few}
"""What each task counts in averages: the sizes of clinc150 as one. HellaSWAG is no task of them: its rows are another's
other domain."""
del IN_DOMAIN["hellaswag"]

OTHER_DOMAINS = tuple(
    (name, f"ood-{domain}")
    for name in IN_DOMAIN
    for domain in _DATA[TASKS[name].data].get("ood", {})
    if domain != "swag-4"
)


@dataclass(frozen=True, eq=False)
class Sets:
    """What one run is given, and what it is judged on: `test`, and `ood-NAME`."""

    train: Examples
    dev: Examples | None
    judged: Mapping[str, Examples]


def tasks_like(patterns: str) -> list[Task]:
    """Return the tasks with a name that one of these patterns fits, such as `few-*,trec6`, in their own order."""
    asked = patterns.split(",")
    for pattern in asked:
        if not any(fnmatchcase(name, pattern) for name in TASKS):
            raise SystemExit(f"no task is called {pattern!r}; there are {', '.join(TASKS)}")
    return [task for name, task in TASKS.items() if any(fnmatchcase(name, pattern) for pattern in asked)]


def sets_of(task: Task, folder: Path | None, *, seed: int, rows: int, dev_rows: int, test_rows: int) -> Sets:
    """Return the rows of a task: the seed draws what is learnt from, nobody what is judged on."""
    whole = _whole(task.data, folder)
    if task.per_class:
        chosen = some_of_each_class(whole.train.labels, task.per_class, seed)
    else:
        chosen = stratified(whole.train.labels, rows, seed)
    judged = {"test": whole.test, **({} if task.few else {f"ood-{name}": rows for name, rows in whole.ood.items()})}
    return Sets(
        whole.train.take(chosen),
        None if task.few else whole.dev.take(stratified(whole.dev.labels, dev_rows, _SEED)),
        {name: sampled(examples, test_rows, _SEED) for name, examples in judged.items()},
    )


@lru_cache(maxsize=2)
def _whole(data: str, folder: Path | None) -> TaskSets:
    return gather(parse_task(data, _DATA[data], f"rivals.{data}"), folder)


def stratified(labels: NDArray[np.int64], rows: int, seed: int) -> NDArray[np.int64]:
    """Return which rows to take, at most so many, with each class's share as it is, in the order they have."""
    if rows >= len(labels):
        return np.arange(len(labels))
    rank, sizes = _ranks(labels, seed), np.bincount(labels)
    share = (rank + 0.5) / sizes[labels]
    return np.sort(np.argsort(share, kind="stable")[:rows])


def some_of_each_class(labels: NDArray[np.int64], rows: int, seed: int) -> NDArray[np.int64]:
    """Return so many rows of each class, in the order they have; with one seed, fewer are among more."""
    scarce = np.flatnonzero(np.bincount(labels) < rows)
    if len(scarce):
        raise SystemExit(f"class {scarce[0]} has fewer than {rows} rows")
    return np.flatnonzero(_ranks(labels, seed) < rows)


def _ranks(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return each row's place in a random order of its class."""
    ranks = np.empty(len(labels), dtype=np.int64)
    generator = np.random.default_rng([seed, 23])
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        ranks[generator.permutation(members)] = np.arange(len(members))
    return ranks
